"""Cases of the GPU benchmark: problems, kernels of bough and of peers, and the ceilings of the device.

Settings come in; timed functions go out.
"""
