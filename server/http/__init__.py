"""HTTP itself: authentication, bodies, clients that disconnect, streams of events.

Bytes come in, checked bodies go out to the routes; events come back and leave as server-sent events. `gate` is around
everything: `access` decides who enters, `door` when, `connection` takes a body in, and `answers` go out.
"""
