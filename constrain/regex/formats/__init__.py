"""JSON Schema's `format` values as languages: dates, hosts, addresses, URIs.

A format's name comes in, a language goes out, or None where no regular language can be exact.
"""
