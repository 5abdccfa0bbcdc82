"""Cases of the GPU benchmark: problems, our kernels, others' kernels, and the ceilings of the device.

Settings come in, timed functions go out.
"""
