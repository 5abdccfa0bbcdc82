"""Hand-written kernels, one operation a folder, each beside a plain-torch reference.

Tensors and flat integer arrays come in; tensors go out. Nothing here knows about requests, grammars or the prefix tree;
`select` modules choose the implementation for a device. The CPU library is in `native`. To add a format of weights,
follow the list at the head of `linear/formats.py`.
"""
