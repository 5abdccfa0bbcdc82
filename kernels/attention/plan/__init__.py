"""Work lists of attention: the pages that each program of a kernel reads, and the rows that it reads them for.

Page tables and lengths come in; flat arrays for the kernels go out. Where the cost model says that it pays, leading
pages shared by several page tables, as `radix` shares them, are read once for all their rows (cascade attention).
"""
