"""Programs interpreted on the client, for backends that know single calls only.

Programs come in, one call at a time goes out to the API, program events go out to the session.
"""
