"""HTTP layer: authentication, bodies, clients that disconnect, event streams.

Bytes come in, checked bodies go to the routes; events come back and leave as server-sent events. `protocol`, with
`table` and `intake`, keeps connections and reads their messages; `gate` wraps all routes; `access`, with `keys`,
authenticates and counts use; `door` gives keys their turns; `connection` receives bodies and watches for disconnects;
`answers` sends errors, streams and large answers, in the `dialect` of the API that was asked.
"""
