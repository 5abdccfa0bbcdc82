"""Batches: as a list, one by one, with a bar; a failure is one item's."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def count(s, start, step=1):
    s += f"Counting by {step}: {start}, {start + step},"
    s += sgl.gen("rest", 2)


ITEMS = [{"start": i} for i in range(4)]


@pytest.mark.parametrize("num_threads", ["auto", 1, 3])
def test_a_list(num_threads):
    states = count.run_batch(ITEMS, temperature=0, num_threads=num_threads, max_new_tokens=2)
    assert [state.text().split(",")[0] for state in states] == [f"Counting by 1: {i}" for i in range(4)]


def test_one_by_one():
    states = count.run_batch(ITEMS, temperature=0, generator_style=True, num_threads=2)
    assert iter(states) is states
    assert [state.text().split(",")[0] for state in states] == [f"Counting by 1: {i}" for i in range(4)]


def test_tuples_and_a_bar(capsys):
    states = count.run_batch([(1,), (2, 5)], temperature=0, progress_bar=True)
    assert states[1].text().startswith("Counting by 5: 2, 7,")
    assert "2/2" in capsys.readouterr().err


def test_nothing():
    assert count.run_batch([]) == []


def test_one_that_fails():
    states = count.run_batch([{"start": 1}, {"start": None}], temperature=0)
    assert states[0].error() is None
    assert isinstance(states[1].error(), TypeError)
    assert states[0]["rest"]
