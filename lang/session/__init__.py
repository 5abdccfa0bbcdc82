"""One run of a body: its branches, the segments sent, the values received, and how Python waits for them.

Recorded segments come in and go to the backend; events come back and become known values.
"""
