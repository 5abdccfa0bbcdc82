"""Model files: locates, downloads, and reads them with every length checked (safetensors, GGUF, quantised folders).

A path or a name comes in; configurations and stored weights go out. Nothing in a file is ever executed.
`runtime/models/load.py` opens each kind of file, `runtime/load/load_native.py` a GGUF file for the CPU library. To add
a quantised format, follow the list at the head of `kernels/linear/formats.py`.
"""
