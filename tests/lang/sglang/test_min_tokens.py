"""An answer that would be short is made longer."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_gen_min_new_tokens():
    @sgl.function
    def convo(s, least):
        s += sgl.user("What is the capital of France? Answer with one word.")
        s += sgl.assistant(sgl.gen("answer", 20, least, temperature=0))

    short, long = convo.run(0), convo.run(16)
    assert short.get_meta_info("answer")["completion_tokens"] < 16
    assert 16 <= long.get_meta_info("answer")["completion_tokens"] <= 20


def test_of_a_number_it_asks_for_digits():
    @sgl.function
    def number(s):
        s += "The number is " + sgl.gen_int("answer", min_tokens=4, max_tokens=8)

    state = number.run(temperature=0)
    assert isinstance(state["answer"], int)
    assert state.get_meta_info("answer")["completion_tokens"] >= 4
