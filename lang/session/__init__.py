"""One run of a body: its branches, what was sent, what came back, and how Python waits for it.

Recorded segments come in and go to the backend; events come back and become known values.
"""
