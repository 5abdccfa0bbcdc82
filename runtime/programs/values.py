"""The values of a branch by name. What was there at a fork is shared with it, and no later state of it is a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Values(Mapping[str, str]):
    """What a branch was given at its fork, and what it has made since, the last of each name."""

    __slots__ = ("_before", "_given", "_log", "_own")

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._given: Mapping[str, str] = {} if given is None else given
        self._before = self._given  # never changed, but replaced when a fork takes in what has been made
        self._own: dict[str, str] = {}
        self._log: list[tuple[str, str]] = []

    def keep(self, name: str, text: str) -> None:
        self._own[name] = text
        self._log.append((name, text))

    def fork(self) -> Values:
        """What a branch begins with that is forked here."""
        if self._own:
            self._before, self._own = {**self._before, **self._own}, {}
        return Values(self._before)

    def anew(self) -> Values:
        """What there was at the fork."""
        return Values(self._given)

    @property
    def mark(self) -> int:
        """A place in the order in which values were made, for `adopt`."""
        return len(self._log)

    def adopt(self, child: Values, mark: int) -> None:
        """Takes over what `child` had at `mark`, of names that are not there."""
        given: Mapping[str, str] = {} if child._given is self._before else child._given
        for name, text in {**given, **dict(child._log[:mark])}.items():
            if name not in self:
                self.keep(name, text)

    @property
    def size(self) -> int:
        """About how many entries a fork or a join looks at."""
        return len(self._given) + len(self._log)

    def __getitem__(self, name: str) -> str:
        return self._own[name] if name in self._own else self._before[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._before

    def __iter__(self) -> Iterator[str]:
        return iter({**self._before, **self._own})

    def __len__(self) -> int:
        return len({**self._before, **self._own})
