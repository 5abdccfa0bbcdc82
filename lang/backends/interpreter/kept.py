"""The programs that a client-side interpreter runs, and those that it keeps for another stretch."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from ....runtime.programs.validate import StretchReader
from ....runtime.protocol.errors import ErrorInfo, RequestError
from ....runtime.protocol.patterns import PatternCache
from ....runtime.protocol.program import Program, ProgramEvent
from ....runtime.tools.registry import ToolCall
from .interpreter import Caller, Interpretation
from .state import Run

MAX_STATES = 1024
DROPPED = ErrorInfo(code="aborted", message="the program was dropped")


class Interpreter:
    """Runs programs whose values `caller` makes. Used by one thread at a time.

    Of the states that wait for another stretch, the least recently used are dropped when there are more than
    `max_states`.
    """

    def __init__(
        self, caller: Caller, *, max_states: int = MAX_STATES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._caller = caller
        self._max_states = max_states
        self._clock = clock
        self._patterns = PatternCache()
        self._states: OrderedDict[str, Interpretation] = OrderedDict()

    @property
    def num_states(self) -> int:
        return len(self._states)

    def run(self, program: Program, tools: Mapping[str, ToolCall], listener: Callable[[ProgramEvent], None]) -> None:
        """Starts or continues a program.

        Raises:
            RequestError: it is not well-formed, or the state to continue is gone. Nothing was started.
        """
        state = self._find(program)
        reader = StretchReader(state.known, tools, self._patterns)
        block = reader.read(program.ops)

        def heard(event: ProgramEvent) -> None:
            if run.over and not state.runs and not state.kept:
                self._states.pop(state.id, None)
            listener(event)

        run = Run(program, heard, self._clock(), tools, self._patterns)
        self._states[program.id] = state
        self._states.move_to_end(program.id)
        state.start(run, block)
        self._trim()

    def drop(self, program_id: str) -> None:
        """Stops a program and forgets its state. Unknown ids are ignored."""
        state = self._states.pop(program_id, None)
        if state is not None:
            state.stop(DROPPED)

    def close(self) -> None:
        """Stops everything."""
        for program_id in list(self._states):
            self.drop(program_id)

    def _find(self, program: Program) -> Interpretation:
        state = self._states.get(program.id)
        if program.resume:
            if state is None or state.namespace != program.namespace or not state.kept:
                raise RequestError(
                    f"the state of program {program.id} is gone (dropped, or too many were kept)",
                    code="state_not_found",
                    param="id",
                )
            return state
        if state is not None:
            raise RequestError(f"the state of program {program.id} exists already", param="id")
        return Interpretation(program, self._caller, self._clock)

    def _trim(self) -> None:
        idle = [state for state in self._states.values() if not state.runs]
        for state in idle[: max(0, len(idle) - self._max_states)]:
            del self._states[state.id]
