"""Linear layers: quantised weights (packed blocks, bytes) and products whose bits do not depend on the batch.

Rows of activations and stored weights come in, rows go out. `select` chooses the kernel for a format and a device.

A new quantised format takes: its layout in memory and `dequantise` (`formats`), its product (as in `packed_linear` or
`bytes_linear`; `select.select_product` dispatches), rounding to it and joining projections while a model is loaded
(`runtime/models/quantise.py`), and reading it from files that have it (`runtime/checkpoints`). On the CPU library it
also takes tiles (`kernels/native/packed.py`, `kernels/native/weights.py`, `source/pack.c` for types of GGUF) and a
product in `kernels/native/source/linear`; `runtime/models/native.py` chooses it.
"""
