"""Model files: found, fetched, and read within their bounds (safetensors, GGUF, quantised folders).

A path or a name comes in; configurations and stored weights go out. Nothing in a file is ever executed. A new quantised
format of files: see `kernels/linear/formats.py`. `runtime/models/load.py` opens each kind of file,
`runtime/load/load_native.py` a GGUF file on the CPU.
"""
