"""Backends, which run programs: in this process, on a server, over another API, from recordings, or scripted.

Programs come in; program events go out. `lang.backend.Backend` is the interface.
"""
