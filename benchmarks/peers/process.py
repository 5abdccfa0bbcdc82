"""A side of a comparison as the benchmark sees it: a process that does one job after the other, and is idle between."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..harness.child import Child, GoneError, python_command
from .environments import PeerError
from .sides import peer_side

OURS = "bough"


class Side:
    """A running side. Its first message says that it is ready. Whoever makes it calls `close`.

    name      what to call it
    command   what to run: it speaks the protocol of `peer_side`
    log       gets all that is printed beside it

    Raises:
        PeerError: there is no such program.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.ended = ""
        """Reason why the process answers no more, for all that it is asked from then on."""
        self._log = log
        offline = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        try:
            self._child = Child(command, mark=peer_side.MARK, log=log, environment=offline | dict(variables or {}))
        except OSError as error:
            raise PeerError(f"{command[0]}: {error.strerror}") from error

    def wait_ready(self, limit_s: float) -> dict[str, Any]:
        """Waits for its first message: `ready`, the seconds that it took to load. Raises as `ask`."""
        return self._receive(limit_s)

    def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """The answer to a job. Raises PeerError: the job failed, the process ended, or took too long (and is ended)."""
        if self.ended:
            raise PeerError(self.ended)
        try:
            self._child.send(json.dumps({"job": job, **arguments}))
        except GoneError as error:
            self.ended = f"{self.name} has ended; its output is in {self._log}"
            raise PeerError(self.ended) from error
        return self._receive(limit_s)

    def close(self) -> None:
        """Ends the process."""
        self._child.end()

    def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._child.receive(limit_s)
        except GoneError as error:
            self.ended = f"{self.name}: {error}"
            raise PeerError(self.ended) from error
        if line is None:
            self.ended = f"{self.name} ended with status {self._child.wait()}; its output is in {self._log}"
            raise PeerError(self.ended)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer


_RUN = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('sides.peer_side', {}, '__main__', True)"
"""Runs the folder of sides as a package by itself."""


def side_command(kind: str, engine: str, interpreter: Path | None, options: Mapping[str, Any]) -> list[str]:
    """Command that runs a side.

    kind         of `peer_side.KINDS`
    interpreter  of the peer's environment; None: ours, as a module
    """
    folder = str(Path(peer_side.__file__).resolve().parent.parent)
    alone = [str(interpreter), "-P", "-u", "-c", _RUN, folder]
    command = python_command("peers.sides.peer_side") if interpreter is None else alone
    return [*command, kind, engine, json.dumps(options)]
