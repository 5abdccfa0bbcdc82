"""State seen by a program's body: values, streamed texts, groups of forks, conversations, views for notebooks.

Reads come in; values go out once the session knows them.
"""
