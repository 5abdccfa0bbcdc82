"""An attack on the engine's thread: a program, what it was charged for in one go, and how often others had a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bough.runtime.client.streams import with_whole_ends
from bough.runtime.protocol.program import Op, Program

from ..oracle import Heard
from ..tool_place import ToolPlace


class Attack:
    """A program, and what it was charged for at most in one go, between two of which the engine can make a step."""

    def __init__(self, place: ToolPlace, ops: list[Op], **fields: Any) -> None:
        self.heard = Heard()
        self.most = 0
        self.num_goes = 0
        program = Program(id="attack", ops=tuple(ops), **fields)
        place.executor.run(program, with_whole_ends(self.heard))
        self.state = place.executor._states.get("attack")
        while not self.heard.over:
            if place.engine.idle or place.has_calls:
                call, before = place.next_call(), 0 if self.state is None else self.state.work
                call()
                self.state = self.state or place.executor._states.get("attack")
                self.most = max(self.most, 0 if self.state is None else self.state.work - before)
                self.num_goes += 1
            if not place.engine.idle:
                place.engine.step()

    @property
    def code(self) -> str:
        error: str = self.heard.failed.error.code
        return error


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    before: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return before(*args, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls
