"""Random programs with control flow: what the language makes of them is what evaluating them directly gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from bough.lang.api import function
from bough.lang.backends.local import LocalBackend
from bough.lang.backends.mock import MockBackend
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.protocol.config import EngineConfig

from ...support.fakes import fake_engine
from .random_flow import Line, Writer, answer_or_choice, evaluate, record

TEMPLATE = r"<\|im_start\|>(user|system)\n|<\|im_end\|>\n?"


def check(seed: int) -> None:
    program = Writer(seed).program()
    expected = Line()
    evaluate(expected, program)
    with closing(MockBackend(answer_or_choice)) as backend:
        compare(program, expected, backend)


def compare(program: list[Any], expected: Line, backend: MockBackend) -> None:
    state = function(lambda s: record(s, program)).run(backend=backend)
    assert len(backend.requests) <= 1
    values = state.values()
    assert values == {name: expected.values.get(name) for name in values}, program
    assert values.keys() >= expected.values.keys()
    for name in {name for name, _ in expected.made}:
        assert state.history(name) == [value for made, value in expected.made if made == name], program
    assert [message["content"] for message in state.messages()] == expected.messages, program
    assert "".join(state.text_iter()) == expected.plain, program
    assert state.text() == expected.text, program


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_a_random_program_does_what_it_says(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalBackend]:
    """A real engine, whose model is made up."""
    client = LocalClient(EngineLoop(fake_engine(num_pages=1 << 15)[0], EngineConfig()))
    yield LocalBackend(client=client)
    client.close()


def test_what_is_known_here_is_what_the_engine_has_done(engine: LocalBackend) -> None:
    for seed in range(150):
        program = Writer(seed).program()
        state = function(lambda s, program=program: record(s, program)).run(backend=engine, temperature=0, max_tokens=3)
        assert "".join(state.text_iter()) == re.sub(TEMPLATE, "", state.text()), program
        state.values()
        state.messages()
