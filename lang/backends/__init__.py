"""Places where programs run: in this process, on a server, over another API, recorded, or against scripted answers.

Programs come in, program events go out; `lang.backend.Backend` is the interface.
"""
