"""Backends over APIs that know no programs: OpenAI's, Anthropic's and their like.

Calls of the interpreter come in; HTTP requests go out, answers come back with what the API cannot do emulated.
"""
