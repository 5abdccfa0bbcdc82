"""Checks of finished values against what no mask can enforce, before their end is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import msgspec

from ...constrain import GrammarError
from ...constrain.errors import CompileLateError, cut
from ...constrain.json_text.parts import all_schemas
from ...constrain.receipt import Finding, Receipt, Violation
from ...constrain.spec import GrammarSpec
from ..protocol.errors import ErrorInfo
from ..protocol.request import Finish, RequestOutput
from .generation import Generation

Check = Callable[[GrammarSpec, str, Receipt | None, str], Future[list[Finding]]]
"""Starts checking a text on behalf of a tenant."""

Abandon = Callable[[Future[list[Finding]]], None]
"""Abandons a check whose result is no longer needed."""

MAX_NAMED = 5
"""Most violations named in an error message."""


class Checks:
    """Tracks the checks in progress. Calls `wake` from a worker thread when one ends."""

    def __init__(self, check: Check, abandon: Abandon, wake: Callable[[], None]) -> None:
        self._check = check
        self._abandon = abandon
        self._wake = wake
        self.under_way: dict[Generation, tuple[Future[list[Finding]], Finish]] = {}

    @property
    def any_done(self) -> bool:
        return any(future.done() for future, _ in self.under_way.values())

    @property
    def futures(self) -> Iterable[Future[list[Finding]]]:
        return [future for future, _ in self.under_way.values()]

    def begin(self, generation: Generation, finish: Finish) -> None:
        """Starts checking the text of `generation`, which ends with `finish` if the text is valid."""
        assert generation.request.grammar is not None
        found, tenant = generation.check, generation.sequence.tenant
        try:
            future = self._check(generation.request.grammar, found.text, found.receipt, tenant)
        except Exception as error:  # noqa: BLE001  reported as the result of the check
            future = Future()
            future.set_exception(error)
        self.under_way[generation] = future, finish
        future.add_done_callback(lambda _: self._wake())

    def drop(self, generation: Generation) -> bool:
        """Abandons the check of `generation`; returns False if there is none."""
        future, _ = self.under_way.pop(generation, (None, None))
        if future is not None and not future.done():
            self._abandon(future)
        return future is not None

    def take_late(self, now: float) -> Iterator[tuple[Generation, RequestOutput]]:
        """Yields the generations whose deadline has passed before their check ended, with their terminal events."""
        for generation in list(self.under_way):
            if now >= generation.sequence.standing.deadline and self.drop(generation):
                yield generation, generation.expire(now)

    def take_done(self) -> Iterator[tuple[Generation, RequestOutput]]:
        """Yields the generations whose check has ended, with their terminal events."""
        for generation, (future, finish) in list(self.under_way.items()):
            if future.done() and self.drop(generation):  # a listener that hears of one end may drop another
                finish = _judge(finish, future, generation.request.grammar)
                generation.finish, generation.check.done = finish, True
                yield generation, RequestOutput(id=generation.request.id, finish=finish)


def _judge(finish: Finish, check: Future[list[Finding]], spec: GrammarSpec | None) -> Finish:
    """Returns `finish` as changed by the findings: an error for an exact schema, a receipt for a best-effort one."""
    assert finish.constraint is not None
    error = check.exception()
    if error is not None:
        reason = str(error) if isinstance(error, GrammarError) else "the check failed"
        schemas = () if spec is None else all_schemas(spec)
        exact = finish.constraint.mode == "exact" or any(schema.policy == "exact" for schema in schemas)
        violation = Violation("", f"the value could not be checked: {reason}")
        findings = [Finding(violation, "exact" if exact else "best_effort")]
    else:
        findings = check.result()
    if not findings:
        return finish
    violations = tuple(found.violation for found in findings)
    receipt = msgspec.structs.replace(finish.constraint, violations=violations)
    if all(found.policy == "best_effort" for found in findings):
        return msgspec.structs.replace(finish, constraint=receipt)
    named_first = [found.violation for found in sorted(findings, key=lambda found: found.policy == "best_effort")]
    named = "; ".join(f"{cut(found.pointer) or '(the value)'}: {found.message}" for found in named_first[:MAX_NAMED])
    if isinstance(error, CompileLateError):  # says nothing about the value
        info = ErrorInfo(code="engine_overloaded", message=f"the value could not be checked in time: {error}")
    else:
        info = ErrorInfo(code="constraint_violated", message=f"the value violates its constraint: {named}")
    return msgspec.structs.replace(finish, reason="error", matched=None, error=info, constraint=receipt)
