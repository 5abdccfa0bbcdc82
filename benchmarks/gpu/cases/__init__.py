"""Cases of the GPU benchmark: problems, our kernels, rivals, and what the machine could do at most.

Settings come in, timed functions go out.
"""
