"""Programs over APIs of single calls: the machine that keeps each branch as messages and makes its calls in order.

Programs come in; calls go out to the API, one at a time for each branch; program events go out to the session.
"""
