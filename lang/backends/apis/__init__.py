"""Backends over APIs without programs, such as OpenAI's and Anthropic's.

Calls of the interpreter come in; HTTP requests go out, and answers come back. Features that an API lacks are emulated.
"""
