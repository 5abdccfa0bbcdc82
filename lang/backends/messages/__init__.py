"""Programs over the APIs of models: the machine that keeps messages and makes one call after the other.

Programs come in, one call at a time goes out to the API, program events go out to the session.
"""
