"""Group of the branches of a fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, overload

from ...runtime.protocol.program import JoinMode
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..record.expression import Expression
from ..session.branch import Branch
from ..session.samples import cancel
from .notebook import group_view


class Member(Protocol):
    """A state, as far as groups are concerned."""

    @property
    def _branch(self) -> Branch: ...

    def __getitem__(self, name: str) -> Any: ...

    def __iadd__(self, other: str | Expression) -> Self: ...

    def _repr_html_(self) -> str: ...


Branching = TypeVar("Branching", bound=Member)

_JOIN_MODES: dict[str, JoinMode] = {
    "gather": "gather",
    "append": "append",
    "gather_variable": "gather",
    "concate_and_append": "append",
}


class Group(Generic[Branching]):
    """The branches of a fork.

    >>> branches = s.fork(3)
    >>> branches += lambda i: f"Idea {i + 1}:" + gen("idea")
    >>> branches.join()
    >>> s["idea"]
    ['...', '...', '...']
    """

    def __init__(self, parent: Branching, states: Sequence[Branching]) -> None:
        self._parent = parent
        self._states = tuple(states)

    def _repr_html_(self) -> str:
        return group_view(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Branching]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> Branching: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | str) -> Branching | list[Any]:
        """The branch at an index; or for a name, the variable's values in all branches."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"there is no branch {index}: the fork has {len(self)}")
            return self._states[index]
        return [state[index] for state in self._states]

    def __setitem__(self, index: int, state: Branching) -> None:
        """Lets `group[i] += ...` work: a branch cannot be replaced."""
        if self._states[index] is not state:
            raise ProgramError("a branch of a fork cannot be replaced", code="invalid_program", place=caller())

    def __iadd__(
        self, other: str | Expression | Sequence[str | Expression] | Callable[[int], str | Expression]
    ) -> Self:
        """Appends to each branch: the same, one item of a list each, or a function's result for its index."""
        if isinstance(other, Sequence | Iterator) and not isinstance(other, str):
            parts: Sequence[Any] = list(other)
        elif callable(other):
            parts = [other(i) for i in range(len(self))]
        else:
            parts = [other] * len(self)
        if len(parts) != len(self):
            raise ProgramError(
                f"{len(parts)} expressions cannot be appended to {len(self)} branches",
                code="invalid_program",
                place=caller(),
            )
        for state, part in zip(self._states, parts, strict=True):
            state.__iadd__(part)
        return self

    def join(self, mode: str = "gather", *, errors: Literal["raise", "value"] = "raise") -> None:
        """Ends the branches. The variables that they have set become lists of the parent, in their order.

        "append" also appends to the parent what each branch appended, in order, except for failed branches. With
        `errors="value"`, the lists contain the error of a failed branch in its place; otherwise reading such a list
        raises it.
        """
        if mode not in _JOIN_MODES:
            raise ProgramError(f'mode must be "gather" or "append", got {mode!r}', param="mode", place=caller())
        if errors not in ("raise", "value"):
            raise ProgramError(f'errors must be "raise" or "value", got {errors!r}', param="errors", place=caller())
        branches = [state._branch for state in self._states]
        self._parent._branch.join(branches, _JOIN_MODES[mode], errors_as_values=errors == "value")

    def cancel(self) -> None:
        """Stops all branches, as `State.cancel` does."""
        for state in self._states:
            cancel(state._branch)
