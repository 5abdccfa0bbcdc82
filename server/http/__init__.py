"""HTTP itself: who may enter, bodies, connections that end early, streams of events.

Bytes come in, checked bodies go out to the routes; events come back and leave as server-sent events.
"""
