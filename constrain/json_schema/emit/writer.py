"""A grammar's text as it grows: rules and terminals, each written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...errors import GrammarTooComplexError
from ...regex.language import Language
from ...regex.terminal import ANY_WORDS, to_terminal
from ..open.graph import Graph, Values
from ..open.shapes import Node

Order = Literal["any", "schema"]

MAX_SOURCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """How values are laid out: `comma` and `colon` are bodies of terminals.

    A space that may be left out is an alternative: after `?` llguidance finds no bound of a key's length, and looks at
    each token that may stand in it.
    """

    order: Order
    comma: str
    colon: str

    @property
    def canonical(self) -> bool:
        """Each number is written in one way."""
        return self.order == "schema"


LAYOUTS: dict[Order, Layout] = {
    "any": Layout("any", '","|", "', '":"|": "'),
    "schema": Layout("schema", '", "', '": "'),
}


class Writer:
    """Names rules and terminals, and keeps those that were written. Nodes that were named wait to be written.

    Every rule, symbol and space costs the grammar's compiler about as much: there are few of them.
    """

    def __init__(self, graph: Graph, layout: Layout, scalars: Callable[[Writer, Values], list[str]]) -> None:
        self.graph = graph
        self.layout = layout
        self.scalars = scalars
        self.waiting: list[tuple[str, Node]] = []
        self._rules: list[str] = []
        self._names: dict[Node, str] = {}
        self._terminals: dict[str, str] = {}
        self._num_rules = 0
        self._length = 0

    def node(self, node: Node) -> str:
        """The symbol for `node`: a rule's name, or a terminal if all its values are in one."""
        name = self._names.get(node)
        if name is None:
            values = self.graph.values[node]
            scalars = [] if values.anything or values.arrays or values.objects else self.scalars(self, values)
            if len(scalars) == 1:
                name = scalars[0]
            else:
                name = self.fresh()
                self.waiting.append((name, node))
            self._names[node] = name
        return name

    def fresh(self) -> str:
        """A new rule's name."""
        self._num_rules += 1
        return f"r{self._num_rules}"

    def rule(self, name: str, alternatives: list[str]) -> None:
        """Adds a rule. One with a parameter has to look at it."""
        if name.endswith("::_") and not any("::" in text or "%if" in text for text in alternatives):
            alternatives = [f"{text} %if ge(_, 0)" for text in alternatives]
        text = f"{name}:" + "|".join(dict.fromkeys(alternatives))
        self._length += len(text)
        if self._length > MAX_SOURCE:
            raise GrammarTooComplexError("the schema's grammar is too large")
        self._rules.append(text)

    def terminal(self, expression: str) -> str:
        """The name of the terminal for a Lark expression."""
        name = self._terminals.get(expression)
        if name is None:
            name = self._terminals[expression] = f"T{len(self._terminals)}"
            self._length += len(expression)
        return name

    @property
    def comma(self) -> str:
        return self.terminal(self.layout.comma)

    @property
    def colon(self) -> str:
        return self.terminal(self.layout.colon)

    def string(self, language: Language, after: str = "") -> str:
        """The name of the terminal for the strings of a language, and what `after`, a terminal, says."""
        expression = to_terminal(language, after)
        if expression != ANY_WORDS and ANY_WORDS in expression:
            expression = expression.replace(ANY_WORDS, self.terminal(ANY_WORDS))
        return self.terminal(expression)

    def key(self, name: str) -> str:
        """The name of the terminal for a key of plain characters, with what stands before its value."""
        return self.terminal(f'"\\"{name}\\"" {self.colon}')

    def key_of(self, language: Language) -> str:
        """The same for the keys of a language."""
        if language == Language.ANY:
            return self.terminal(f"{self.string(language)} {self.colon}")
        return self.string(language, self.colon)

    def one_of(self, expressions: list[str]) -> list[str]:
        """The name of the terminal for all of `expressions`, if there are any."""
        return [self.terminal("|".join(dict.fromkeys(expressions)))] if expressions else []

    def text(self, start: str) -> str:
        """The whole grammar, which begins with the rule `start`."""
        terminals = [f"{name}:{text}" for text, name in self._terminals.items()]
        return "\n".join([f"start:{start}", *self._rules, *terminals, ""])


def number_texts(value: int | float, canonical: bool) -> str:
    """A Lark expression for how one number may be written."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e16):
        text = str(int(value))
        return f'"{text}"' if canonical or abs(value) >= 1e16 else f'"{text}" ".0"?'
    return f'"{json.dumps(value)}"'
