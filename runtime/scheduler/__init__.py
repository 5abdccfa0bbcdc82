"""Scheduler: plans for each step which sequences compute which tokens over which pages.

A sequence that is admitted (`Scheduler._admit`) shares the prefix that the cache (`radix`) finds for its tokens. If
another sequence is computing a prefix that is longer by `hold_back` tokens, as the first of a fork's children does for
the others, it waits until that one is cached (`_awaits_prefix`), unless it has waited `max_passes` steps. When pages
run out, the cache evicts unlocked ones (`RadixTree.evict`); if that is not enough, running sequences are put back to
wait. All that may delay a constrained sequence is listed in `runtime.engine`.

Sequences come in, plans go out, results come back in. The scheduler is stateful but deterministic: it uses no clock,
randomness, threads or tensors.
"""
