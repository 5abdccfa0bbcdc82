"""Reads the result of a template from the events of its run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .condition import Ref
from .errors import EngineError
from .program import BranchFailed, ProgramEvent, Skipped, Value
from .request import ErrorInfo
from .template import (
    Reading,
    Result,
    ResultArgument,
    ResultConstant,
    ResultList,
    ResultObject,
    ResultProbabilities,
    ResultText,
    ResultValue,
)

_READERS: Mapping[Reading, Callable[[str], Any]] = {
    "text": str,
    "json": json.loads,
    "int": int,
    "float": float,
    "bool": lambda text: text.strip() == "True",
}


class Results:
    """Collects the values of a run.

    >>> results = Results()
    >>> for event in client.run(program):
    ...     results.feed(event)
    >>> results.read(template.result)
    {'answer': 'Paris'}
    """

    def __init__(self) -> None:
        self._values: dict[Ref, list[Value]] = {}
        self._nothing: set[Ref] = set()
        self._errors: dict[int, ErrorInfo] = {}

    def feed(self, event: ProgramEvent) -> None:
        """Takes in an event; only finished values and failed branches matter."""
        match event:
            case Value(branch=branch, name=name, turn=turn):
                turns = self._values.setdefault(Ref(branch, name), [])
                self._nothing.discard(Ref(branch, name))
                turns[turn:] = [event]  # a branch that begins anew counts from 0 again
            case Skipped(branch=branch, name=name):
                self._nothing.add(Ref(branch, name))
            case BranchFailed(branch=branch, error=error):
                self._errors[branch] = error

    def read(self, result: Result) -> Any:
        """The result as a JSON value. What was not made, since a condition went the other way, is None; in the place
        of a value of a branch that failed stands `{"error": {"code": ..., "message": ...}}`.

        Raises:
            EngineError: a text is not what was asked for; only a limit that is too small leads to that.
        """
        match result:
            case ResultConstant(json=text):
                return json.loads(text)
            case ResultList(items=items):
                return [self.read(item) for item in items]
            case ResultObject(fields=fields):
                return {name: self.read(field) for name, field in fields}
            case ResultText(parts=parts):
                return "".join(part if isinstance(part, str) else self._text(part) for part in parts)  # type: ignore[arg-type]
            case ResultValue():
                return self._value(result)
            case ResultProbabilities(ref=ref, choices=choices):
                values = self._values.get(ref, [])
                shares = values[-1].probabilities if values else None
                return None if shares is None else dict(zip(choices, shares, strict=True))
            case ResultArgument(hole=hole):
                raise EngineError(f"the argument {hole.name!r} was not filled in", code="invalid_program")

    def _text(self, ref: Ref) -> str:
        values = self._values.get(ref)
        return values[-1].text if values else ""

    def _value(self, wanted: ResultValue) -> Any:
        values = self._values.get(wanted.ref, [])
        if wanted.turns:
            return [self._one(wanted, value) for value in values]
        if wanted.assigned and wanted.ref in self._nothing:
            return None
        if values:
            return self._one(wanted, values[-1])
        error = self._errors.get(wanted.ref.branch)
        return None if error is None else {"error": {"code": error.code, "message": error.message}}

    def _one(self, wanted: ResultValue, value: Value) -> Any:
        read = _READERS[wanted.reading]
        try:
            if wanted.samples and value.samples is not None:
                return [read(sample) for sample in value.samples]
            return read(value.text)
        except (ValueError, RecursionError) as error:
            message = f"{wanted.ref.name!r} is no {wanted.reading}: {error}; it ended by {value.finish_reason!r}"
            raise EngineError(message, code="invalid_output") from error
