"""Work lists of attention: which program reads which pages for which rows.

Page tables and lengths come in, flat arrays for the kernels go out. Rows whose page tables begin with the same pages,
which `radix` shares, read those once a batch (cascade attention) where the cost model says that it pays.
"""
