"""Linear layers: products with quantised weights (packed blocks, bytes), of few rows, or independent of the batch.

Rows of activations and stored weights come in; rows go out. `select` chooses the kernel for a format and a device.

To add a quantised format, follow the list at the head of `formats`.
"""
