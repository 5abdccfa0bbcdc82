"""Requests and their outputs."""

from __future__ import annotations

import gc

from bough.runtime.protocol.request import TokenLogprob, Usage


def test_collections_do_not_go_through_log_probabilities() -> None:
    kept = [TokenLogprob(token, -1.0, ((token, -1.0), (0, -2.0))) for token in range(100)]
    gc.collect()
    tracked = {id(each) for each in gc.get_objects()}
    assert not any(id(each) in tracked for each in kept)


def test_usage_adds_up() -> None:
    used = Usage(prompt_tokens=1, cached_tokens=2) + Usage(prompt_tokens=3, completion_tokens=4, forced_tokens=5)
    assert used == Usage(prompt_tokens=4, cached_tokens=2, completion_tokens=4, forced_tokens=5)
