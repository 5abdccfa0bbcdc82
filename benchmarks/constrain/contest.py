"""Contest of grammar engines: runs cases through each in turn, in separate processes, and judges their masks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...constrain import Vocabulary
from ..harness.report import share
from ..peers.process import OURS, PeerError, Side, side_command
from .cases import SchemaCase

START_S = 120.0
_IMPOSSIBLE = ("satisf", "schema is false", "schema false", "empty language")
"""Words with which engines refuse schemas that no value satisfies."""


class Outcome(msgspec.Struct):
    """An engine's outcome on a case."""

    group: str
    name: str
    compile_ms: float  # until the schema was ready or refused
    num_instances: int
    refused: str | None = None
    # (index, place, reason) of valid instances that were not accepted; the place is a token or a byte
    over: list[tuple[int, int, str]] = []
    under: list[int] = []  # indices of invalid instances that were
    mask_us: list[float] = []  # times of each mask
    num_valid: int = 0
    impossible: bool = False  # it was refused since no value satisfies it

    @classmethod
    def of(
        cls, case: SchemaCase, compile_ms: float, refused: str | None = None, *, impossible: bool = False
    ) -> Outcome:
        """The outcome before instances are walked."""
        outcome = cls(case.group, case.name, compile_ms, len(case.instances), refused, impossible=impossible)
        outcome.num_valid = sum(instance.valid for instance in case.instances)
        return outcome

    @property
    def verdict(self) -> str:
        """ "right", "refused", "under" (whatever else), or "over".

        A schema that no value satisfies is to be refused as that: it is right if indeed no instance is valid.
        """
        if self.refused is not None:
            return "right" if self.impossible and self.num_instances and not self.num_valid else "refused"
        return "under" if self.under else "over" if self.over else "right"


class Score(msgspec.Struct):
    """Counts over cases: each is right, over-restricted, under-constrained or refused."""

    right: int = 0
    over: int = 0
    under: int = 0
    refused: int = 0

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Score:
        return cls(**Counter(outcome.verdict for outcome in outcomes))

    @property
    def total(self) -> int:
        return self.right + self.over + self.under + self.refused

    @property
    def part(self) -> str:
        """The right ones in per cent, "-" of nothing."""
        return share(self.right, self.total)

    def __str__(self) -> str:
        return f"{self.right}/{self.total} = {self.part} (o{self.over} u{self.under} e{self.refused})"


class Contestant:
    """An engine in a process; `left_s` is the time that it may still take, after which it is left out. Raises
    PeerError: it does not start."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, budget_s: float, limit_s: float = 40.0) -> None:
        self.name = name
        self.left_s = budget_s
        self.version: str | None = None
        self._command, self._log, self._limit_s = command, log, limit_s
        self._side: Side | None = self._started()

    def take(self, case: SchemaCase, walks: Sequence[Sequence[int]], kind: str = "schema") -> Outcome:
        """Returns the outcome on a case; one that takes longer than the limit counts as refused."""
        started = time.monotonic()
        try:
            self._side = self._side or self._started()
            answer = self._side.ask("walk", self._limit_s, kind=kind, text=case.schema, walks=walks)
        except PeerError as error:
            self.close()
            return Outcome.of(case, (time.monotonic() - started) * 1e3, f"gone: {error}")
        finally:
            self.left_s -= time.monotonic() - started
        return _judged(case, answer)

    def close(self) -> None:
        """Ends the process; the next case starts another."""
        if self._side is not None:
            self._side.close()
            self._side = None

    def _started(self) -> Side:
        side = Side(self.name, self._command, log=self._log)
        try:
            self.version = side.wait_ready(START_S)["version"]
        except PeerError:
            side.close()
            raise
        return side


def engine_command(name: str, model: str, vocabulary: Path, peers: str | None) -> list[str]:
    """The command that serves an engine: peers run in the interpreter `peers` and read the file `vocabulary`. Raises
    PeerError: there is no interpreter for a peer."""
    is_peer = name not in (OURS, "llguidance")
    if is_peer and peers is None:
        raise PeerError("no --peers")
    options = {"model": model, "vocabulary": str(vocabulary)}
    return side_command("masks", name, Path(peers or "") if is_peer else None, options)


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Writes the tokens for the peers, which cannot read our models; each byte as the character of its number."""
    tokens = [None if text is None else text.decode("latin-1") for text in vocabulary.tokens]
    path.write_text(json.dumps({"tokens": tokens, "size": vocabulary.size, "eos": vocabulary.eos_ids[0]}))


def contest(
    contestants: Sequence[Contestant], cases: Sequence[SchemaCase], vocabulary: Vocabulary, kind: str = "schema"
) -> dict[str, list[Outcome]]:
    """Takes each case through each engine in turn. One whose time is up keeps its outcomes: a prefix of the cases."""
    outcomes: dict[str, list[Outcome]] = {contestant.name: [] for contestant in contestants}
    for case in cases:
        walks = [vocabulary.encode(instance.text) for instance in case.instances]
        for contestant in contestants:
            if contestant.left_s > 0:
                outcomes[contestant.name].append(contestant.take(case, walks, kind))
    return outcomes


def _judged(case: SchemaCase, answer: dict[str, Any]) -> Outcome:
    refused: str | None = answer["refused"]
    impossible = any(word in (refused or "").lower() for word in _IMPOSSIBLE)
    outcome = Outcome.of(case, answer["compile_us"] / 1e3, refused, impossible=impossible)
    for index, (instance, walk) in enumerate(zip(case.instances, answer["walks"], strict=False)):
        if instance.valid and not walk["accepted"]:
            outcome.over.append((index, walk["num_tokens"], ""))
        if walk["accepted"] and not instance.valid:
            outcome.under.append(index)
        outcome.mask_us += walk["mask_us"]
    return outcome
