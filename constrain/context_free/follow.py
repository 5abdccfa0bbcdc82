"""What may come after each terminal of a grammar."""

from __future__ import annotations

from collections.abc import Mapping

from .expressions import Choice, Expression, Name, Repeat, Sequence, is_nullable, nullable_rules


def follow(rules: Mapping[str, Expression], first: Mapping[str, int]) -> dict[str, int]:
    """For each terminal the union of `first` of all terminals that may come right after it.

    Names in the rules are those of rules or of terminals; `first` has a set, as bits, for each terminal.
    """
    return _Search(rules, first).run()


class _Search:
    """Two fixed points: what each name begins with, then what comes after it."""

    def __init__(self, rules: Mapping[str, Expression], first: Mapping[str, int]) -> None:
        self._rules = rules
        self._terminals = first
        self._nullable = nullable_rules(rules)
        self._first = {**dict.fromkeys(rules, 0), **first}
        self._after = dict.fromkeys(self._first, 0)

    def run(self) -> dict[str, int]:
        changed = True
        while changed:
            grown = {name: self._begins(body) for name, body in self._rules.items()}
            changed = any(self._first[name] != begins for name, begins in grown.items())
            self._first.update(grown)
        changed = True
        while changed:
            before = dict(self._after)
            for name, body in self._rules.items():
                self._spread(body, self._after[name])
            changed = before != self._after
        return {name: self._after[name] for name in self._terminals}

    def _begins(self, expression: Expression) -> int:
        match expression:
            case Name(name):
                return self._first[name]
            case Choice(options):
                return self._union(options)
            case Repeat(item):
                return self._begins(item)
            case Sequence(items):
                stop = next((place for place, item in enumerate(items, 1) if not self._skippable(item)), len(items))
                return self._union(items[:stop])
        return 0

    def _union(self, parts: tuple[Expression, ...]) -> int:
        union = 0
        for part in parts:
            union |= self._begins(part)
        return union

    def _skippable(self, expression: Expression) -> bool:
        return is_nullable(expression, self._nullable)

    def _spread(self, expression: Expression, after: int) -> None:
        """Notes what comes after the names in an expression that `after` comes after."""
        match expression:
            case Name(name):
                self._after[name] |= after
            case Choice(options):
                for option in options:
                    self._spread(option, after)
            case Repeat(item, _, high):
                self._spread(item, after if high in (0, 1) else after | self._begins(item))
            case Sequence(items):
                for item in reversed(items):
                    self._spread(item, after)
                    after = self._begins(item) | (after if self._skippable(item) else 0)
