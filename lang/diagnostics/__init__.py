"""Errors, the lines of a body that they are about, and checks of options.

Mistakes come in; messages that name the field, the place and the remedy go out.
"""
