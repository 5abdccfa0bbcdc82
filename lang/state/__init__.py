"""The state that a body sees: reading values, streaming texts, groups of forks, views for notebooks.

Reads come in; values go out, once the session knows them.
"""
