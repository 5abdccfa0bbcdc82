"""Meta information about a value."""

from __future__ import annotations

import pytest

from bough.lang.state.meta_info import meta_info
from bough.runtime.protocol.program import Value
from bough.runtime.protocol.request import TokenLogprob, Usage

TEXTS = {1: " a", 2: " b", 3: "c"}


def test_a_generation_with_logprobs():
    entry = TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.0), (9, -3.0)))
    value = Value(branch=0, name="x", text=" a", logprobs=(entry,), token_texts=TEXTS, matched=".", usage=Usage())
    info = meta_info("p1", value)
    assert info["id"] == "p1"
    assert info["finish_reason"] == {"type": "stop", "matched": "."}
    assert info["output_token_logprobs"] == [(-0.5, 1, " a")]
    assert info["output_token_logprobs_length"] == 1
    assert info["output_top_logprobs"] == [[(-0.5, 1, " a"), (-1.0, 2, " b"), (-3.0, 9, None)]]
    assert info["input_token_logprobs"] == []


def test_a_select():
    logprobs = ((TokenLogprob(1, -0.5),), (TokenLogprob(2, -1.0), TokenLogprob(3, -2.0)))
    value = Value(
        branch=0, name="x", text=" a", scores=(-0.5, -3.0), probabilities=(0.9, 0.1), choice_logprobs=logprobs,
        token_texts=TEXTS,
    )  # fmt: skip
    info = meta_info("p1", value, (" a", " bc"))
    assert info["choices"] == [" a", " bc"]
    assert info["normalized_prompt_logprobs"] == pytest.approx([-0.5, -1.5])
    assert info["input_token_logprobs"] == [[(-0.5, 1, " a")], [(-1.0, 2, " b"), (-2.0, 3, "c")]]


def test_a_backend_that_says_nothing():
    info = meta_info("p1", Value(branch=0, name="x", text=" a"), (" a",))
    assert info["probabilities"] == info["scores"] == []
    assert "input_token_logprobs" not in info
    assert "output_token_logprobs" not in meta_info("p1", Value(branch=0, name="x", text=" a"))
