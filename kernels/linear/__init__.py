"""Linear layers: quantised weights (packed blocks, bytes), few rows, and products in bits that no batch changes.

Rows of activations and stored weights come in, rows go out. `select` chooses the kernel for a format and a device.

A new quantised format: `formats` begins with a list of the places that know one.
"""
