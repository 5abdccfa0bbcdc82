"""Linear layers: quantised weights (packed blocks, bytes) and products whose bits do not depend on the batch.

Rows of activations and stored weights come in, rows go out. `select` chooses the kernel for a format and a device.

A new quantised format: `formats` begins with a list of the places that know one.
"""
