"""Model files: found, fetched, and read within their bounds (safetensors, GGUF, quantised folders).

A quantised format of files is added to `quantised._read_method` and `read_stored` (folders as AWQ, GPTQ and FP8) or to
`gguf_file.FORMATS` and `gguf_blocks`; what it becomes in memory is a format of `kernels/linear`. A new dtype also goes
into `quantised.EXTRA_DTYPES`. `runtime/models/load.py` opens each kind, `runtime/load/load_native.py` a GGUF file on
the CPU. A path or a name comes in; configurations and stored weights go out. Nothing in a file is ever executed.
"""
