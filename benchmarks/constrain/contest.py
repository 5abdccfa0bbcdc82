"""Takes cases through several engines in alternation, each in a process of its own that is replaced if it hangs."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...constrain import GrammarCompiler, JsonSchema, Vocabulary
from ..harness.child import Child, GoneError, python_command
from .cases import Case, Instance
from .judge import Outcome, outcome_of
from .peer import MARK

OURS = "bough"
START_S = 120.0
_IMPOSSIBLE = ("satisf", "schema is false", "schema false", "empty language")
"""What engines say of schemas that no value satisfies."""


class Measured(msgspec.Struct):
    """An engine's outcome on a case, with the times of each mask and of each token that was taken."""

    outcome: Outcome
    accept_us: list[float] = []


class Absent(Exception):  # noqa: N818  # a statement about this machine
    """The engine is not installed where it was looked for."""


class Contestant:
    """An engine in a process; `budget_s` is how long it may take in all, after which it is `done`.

    Raises:
        Absent: it does not start.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, *, budget_s: float, limit_s: float) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._limit_s = limit_s
        self.left_s = budget_s
        self._child: Child | None = None
        self._start()

    @property
    def done(self) -> bool:
        return self.left_s <= 0

    def take(self, case: Case, walks: Sequence[Sequence[int]], kind: str = "schema") -> Measured:
        """Its outcome; a case that takes longer than the limit counts as refused."""
        started = time.monotonic()
        try:
            if self._child is None:
                self._start()
            answer = self._ask({"kind": kind, "text": case.schema, "walks": walks})
        except GoneError as error:
            self.close()
            elapsed_ms = (time.monotonic() - started) * 1e3
            return Measured(outcome_of(case, elapsed_ms, f"gone: {error}"))
        finally:
            self.left_s -= time.monotonic() - started
        return _judged(case, walks, answer)

    def close(self) -> None:
        """Ends the process; the next case starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child is not None
        self._child.send(json.dumps(request))
        line = self._child.receive(self._limit_s)
        if line is None:
            raise GoneError("it ended")
        result: dict[str, Any] = json.loads(line)
        return result

    def _start(self) -> None:
        try:
            self._child = Child(self._command, mark=MARK, log=self._log)
            ready = self._child.receive(START_S)
        except (OSError, GoneError) as error:
            raise Absent(str(error)) from error
        if ready is None:
            self.close()
            raise Absent("it ended at the start")


def contestant(
    name: str, model: str, vocabulary: Path, peers: str, folder: Path, *, budget_s: float, limit_s: float = 40.0
) -> Contestant:
    """An engine by its name; peers run in the interpreter `peers`, llguidance in ours: it is what we are built on."""
    if name in (OURS, "llguidance"):
        command = [*python_command("constrain.worker"), name, model]
    else:
        command = [peers, "-P", str(Path(__file__).with_name("peer.py")), name, str(vocabulary)]
    return Contestant(name, command, folder / f"{name}.log", budget_s=budget_s, limit_s=limit_s)


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """For the peers, which cannot read our models."""
    tokens = [None if text is None else base64.b64encode(text).decode() for text in vocabulary.tokens]
    path.write_text(json.dumps({"tokens": tokens, "size": vocabulary.size, "eos": vocabulary.eos_ids[0]}))


def contest(
    contestants: Sequence[Contestant], cases: Sequence[Case], vocabulary: Vocabulary, kind: str = "schema"
) -> dict[str, list[Measured]]:
    """Each case through each engine in turn. One whose time is up keeps what it has: a prefix of the cases."""
    measured: dict[str, list[Measured]] = {contestant.name: [] for contestant in contestants}
    for case in cases:
        walks = [vocabulary.encode(instance.text) for instance in case.instances]
        for contestant in contestants:
            if not contestant.done:
                measured[contestant.name].append(contestant.take(case, walks, kind))
    return measured


def _judged(case: Case, walks: Sequence[Sequence[int]], answer: dict[str, Any]) -> Measured:
    refused: str | None = answer["refused"]
    impossible = any(word in (refused or "").lower() for word in _IMPOSSIBLE)
    outcome = outcome_of(case, answer["compile_us"] / 1e3, refused, impossible=impossible)
    measured = Measured(outcome)
    for index, (instance, walk) in enumerate(zip(case.instances, answer["walks"], strict=False)):
        _count(outcome, index, instance, walk)
        outcome.mask_us += walk["mask_us"]
        measured.accept_us += walk["accept_us"]
    return measured


def _count(outcome: Outcome, index: int, instance: Instance, walk: dict[str, Any]) -> None:
    if instance.valid and not walk["accepted"]:
        outcome.over.append((index, walk["num_tokens"], ""))
    if walk["accepted"] and not instance.valid:
        outcome.under.append(index)


def measure_service(cases: Sequence[Case], vocabulary: Vocabulary) -> list[float]:
    """Milliseconds until each case's grammar is there, one after another, as a server's first request waits for it."""
    compiler = GrammarCompiler(vocabulary)
    times_ms = []
    try:
        compiler.compile(JsonSchema("{}"))  # starts what is started once
        for case in cases:
            started = time.perf_counter()
            error = compiler.submit(JsonSchema(case.schema)).exception()
            if error is None:
                times_ms.append((time.perf_counter() - started) * 1e3)
    finally:
        compiler.close()
    return times_ms
