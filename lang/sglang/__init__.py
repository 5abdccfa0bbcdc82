"""SGLang's names: its endpoint, engine, runtime and options, for programs written against it.

Only the package's facade imports this folder; everything here is built on functions of `lang`.
"""
