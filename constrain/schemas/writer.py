"""A grammar's text as it grows: rules and terminals, each written once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from ..errors import GrammarTooComplexError
from ..languages.language import Language
from ..languages.terminal import to_terminal
from .graph import Graph
from .shapes import Node

Order = Literal["any", "schema"]

MAX_SOURCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """How values are laid out: `comma` and `colon` are Lark expressions."""

    order: Order
    comma: str
    colon: str

    @property
    def canonical(self) -> bool:
        """Each number is written in one way."""
        return self.order == "schema"


LAYOUTS: dict[Order, Layout] = {
    "any": Layout("any", "/, ?/", "/: ?/"),
    "schema": Layout("schema", '", "', '": "'),
}


class Writer:
    """Names rules and terminals, and keeps those that were written. Nodes that were named wait to be written."""

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.graph = graph
        self.layout = layout
        self.waiting: list[tuple[str, Node]] = []
        self._rules: list[str] = []
        self._names: dict[Node, str] = {}
        self._terminals: dict[str, str] = {}
        self._num_rules = 0
        self._length = 0

    def node(self, node: Node) -> str:
        """The name of the rule for `node`."""
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = self.fresh()
            self.waiting.append((name, node))
        return name

    def fresh(self) -> str:
        """A new rule's name."""
        self._num_rules += 1
        return f"r{self._num_rules}"

    def rule(self, name: str, alternatives: list[str]) -> None:
        """Adds a rule. One with a parameter has to look at it."""
        if name.endswith("::_") and not any("::" in text or "%if" in text for text in alternatives):
            alternatives = [f"{text} %if ge(_, 0)" for text in alternatives]
        text = f"{name}: " + "\n | ".join(dict.fromkeys(alternatives))
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

    def string(self, language: Language) -> str:
        """The name of the terminal for the strings of a language."""
        return self.terminal(to_terminal(language))

    def text(self, start: str) -> str:
        """The whole grammar, which begins with the rule `start`."""
        terminals = [f"{name}: {text}" for text, name in self._terminals.items()]
        return "\n".join([f"start: {start}", *self._rules, *terminals, ""])


def number_texts(value: int | float, canonical: bool) -> str:
    """A Lark expression for how one number may be written."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e16):
        text = str(int(value))
        return f'"{text}"' if canonical or abs(value) >= 1e16 else f'"{text}" /(\\.0)?/'
    return f'"{json.dumps(value)}"'
