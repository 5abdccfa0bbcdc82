"""The plan of each step: which sequences compute which tokens over which pages.

A sequence shares the prefix that the cache (`radix`) finds for its tokens, be it of a fork's child or of another
request (`Scheduler._admit`); one whose prefix is being computed right now is held back until it can share it
(`_awaits_prefix`). What else may delay a constrained row: see `runtime.engine`. Pages that run out are evicted by
`RadixTree.evict`; if that is not enough, running sequences are put back to wait.

A pure function of its state: no clock, randomness, threads or tensors. Sequences come in, plans go out, results come
back in.
"""
