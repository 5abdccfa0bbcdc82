"""Finished values that are checked before their end is told: what no mask can enforce."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import msgspec

from ..constrain import GrammarError
from ..constrain.receipt import Violation
from ..constrain.spec import GrammarSpec
from .generation import Generation
from .request import ErrorInfo, Finish, RequestOutput

Check = Callable[[GrammarSpec, str], Future[list[Violation]]]

MAX_NAMED = 5
"""Violations that an error's message names."""


class Checks:
    """Those under way. `wake` is called from another thread when one has ended."""

    def __init__(self, check: Check, wake: Callable[[], None]) -> None:
        self._check = check
        self._wake = wake
        self._under_way: dict[Generation, tuple[Future[list[Violation]], Finish]] = {}

    @property
    def any_done(self) -> bool:
        return any(future.done() for future, _ in self._under_way.values())

    @property
    def futures(self) -> Iterable[Future[list[Violation]]]:
        return [future for future, _ in self._under_way.values()]

    def begin(self, generation: Generation, finish: Finish) -> None:
        """Has the text of `generation` checked, which ends with `finish` if nothing is wrong with it."""
        assert generation.request.grammar is not None
        try:
            future = self._check(generation.request.grammar, generation.text)
        except Exception as error:  # noqa: BLE001  it is told as what the check found
            future = Future()
            future.set_exception(error)
        self._under_way[generation] = future, finish
        future.add_done_callback(lambda _: self._wake())

    def drop(self, generation: Generation) -> bool:
        """Forgets the check of `generation`; False if there is none."""
        return self._under_way.pop(generation, None) is not None

    def take_done(self) -> Iterator[tuple[Generation, RequestOutput]]:
        """The last events of those that have been checked."""
        for generation, (future, finish) in list(self._under_way.items()):
            if future.done() and self.drop(generation):  # who hears of one end may drop another
                finish = _judge(finish, future)
                generation.finish, generation.checked = finish, True
                yield generation, RequestOutput(id=generation.request.id, finish=finish)


def _judge(finish: Finish, check: Future[list[Violation]]) -> Finish:
    """`finish` after what the check has found."""
    assert finish.constraint is not None
    error = check.exception()
    if error is not None:
        reason = str(error) if isinstance(error, GrammarError) else "the check failed"
        violations: tuple[Violation, ...] = (Violation("", f"the value could not be checked: {reason}"),)
    else:
        violations = tuple(check.result())
    if not violations:
        return finish
    receipt = msgspec.structs.replace(finish.constraint, violations=violations)
    if receipt.mode == "best_effort":
        return msgspec.structs.replace(finish, constraint=receipt)
    named = "; ".join(f"{found.pointer or '(the value)'}: {found.message}" for found in violations[:MAX_NAMED])
    info = ErrorInfo(code="constraint_violated", message=f"the value violates its constraint: {named}")
    return msgspec.structs.replace(finish, reason="error", matched=None, error=info, constraint=receipt)
