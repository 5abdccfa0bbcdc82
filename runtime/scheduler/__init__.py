"""The plan of each step: which sequences compute which tokens over which pages.

A sequence that is admitted (`Scheduler._admit`) shares the prefix that the cache (`radix`) finds for its tokens. If
another sequence is computing a longer one right now, as the first of a fork's children does for the others, it waits
until that is there (`_awaits_prefix`), unless it has waited too long already. What else may delay a constrained row:
see `runtime.engine`. When pages run out, the cache evicts some that nobody uses (`RadixTree.evict`); if that is not
enough, running sequences are put back to wait.

A pure function of its state: no clock, randomness, threads or tensors. Sequences come in, plans go out, results come
back in.
"""
