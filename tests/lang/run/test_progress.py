"""The bar of a batch."""

from __future__ import annotations

import pytest

import bough


@bough.function
def ask(s, question):
    s += question + bough.gen("answer", max_tokens=4)
    if question == "bad":
        raise ValueError("own")


@pytest.mark.parametrize("num_threads", ["auto", 2])
def test_it_counts_what_is_done_and_what_has_failed(num_threads, capsys):
    batch = [("a",), ("bad",), ("b",), ("bad",)]
    ask.run_batch(batch, backend=bough.MockBackend(), num_threads=num_threads, progress_bar=True)
    last = capsys.readouterr().err.rstrip().splitlines()[-1].rpartition("\r")[2]
    assert "4/4" in last and "2 failed" in last and "tokens/s" in last


def test_nothing_is_shown_unless_it_is_asked_for(capsys):
    ask.run_batch([("a",)], backend=bough.MockBackend())
    assert capsys.readouterr().err == ""
