"""Errors of programs, and the lines of user code that they point to.

Mistakes come in; messages that name the field, the line and the remedy go out.
"""
