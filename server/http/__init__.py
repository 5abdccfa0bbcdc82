"""HTTP itself: authentication, bodies, clients that disconnect, event streams.

Bytes come in, checked bodies go to the routes; events come back and leave as server-sent events. `gate` wraps all
routes; `access` authenticates and sets limits, `door` admits requests, `connection` receives bodies and watches for
disconnects, `answers` sends errors, streams and large answers.
"""
