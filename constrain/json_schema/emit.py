"""Writes a graph of values as a Lark grammar for llguidance: a rule for each conjunction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from ..errors import GrammarTooComplexError
from ..regex.language import Language
from ..regex.numbers import NumberSet
from ..regex.terminal import ANY_WORDS, to_terminal
from .open.finite import Choices, DistinctItems
from .open.graph import Graph, Values
from .open.plans import ArrayPlan, Counting, Key, ObjectPlan, State
from .open.shapes import NumberShape, Place
from .open.subschemas import Node

Order = Literal["any", "schema"]

MAX_SOURCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of values: `comma` and `colon` are bodies of terminals.

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
        """Returns the name of the terminal for the keys of a language, with what stands before their values."""
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


MAX_MULTIPLE = 10_000
"""Largest `multipleOf`, in units of its last digit: llguidance keeps a state for each remainder."""


def scalars(writer: Writer, values: Values) -> list[str]:
    """Alternatives for the scalars among `values`: one terminal, and what no terminal can hold."""
    expressions = ['"null"'] if values.null else []
    expressions += [f'"{json.dumps(value)}"' for value in sorted(values.booleans)]
    numbers, schemas = _numbers(writer, values.numbers)
    strings = Language.union(shape.language for shape in values.strings)
    if strings != Language.EMPTY:
        name = writer.string(strings)
        if not expressions and not numbers:
            return [name, *schemas]
        expressions.append(name)
    return [*writer.one_of([*expressions, *numbers]), *schemas]


def _numbers(writer: Writer, shapes: list[NumberShape]) -> tuple[list[str], list[str]]:
    """Expressions of a terminal, and schemas of what is too large for that."""
    expressions: list[str] = []
    schemas: list[str] = []
    draft = writer.graph.expander.subschemas.document.draft
    for shape in shapes:
        if shape.values is not None:
            expressions += [number_texts(value, writer.layout.canonical) for value in shape.values]
            continue
        # In draft 4 a number with a point is no integer.
        canonical = writer.layout.canonical or (draft.year == 4 and shape.numbers.multiple is not None)
        expression = shape.numbers.terminal(canonical)
        if expression is not None:
            expressions.append(expression)
            continue
        wider = replace(shape.numbers, others=frozenset())
        if shape.numbers.others:  # what may not divide the number is looked at in the end
            for literal, keyword in sorted(shape.excluding):
                writer.graph.expander.subschemas.check(literal, keyword)
        expression = wider.terminal(canonical)
        schema = wider.schema() if wider.multiple is None or wider.multiple.numerator <= MAX_MULTIPLE else None
        if expression is not None:
            expressions.append(expression)
        elif schema is not None:
            schemas.append(f"%json {json.dumps(schema)}")
        else:
            raise GrammarTooComplexError("a set of numbers is too large to be written as a grammar")
    return expressions, schemas


def distinct_alternatives(writer: Writer, plan: ArrayPlan, items: DistinctItems) -> list[str]:
    """Alternatives of a rule for the arrays of `plan`, each value at most once."""
    names = [_any_of(writer, writings) for writings in items.values]
    return _by_bits(writer, plan, names) if items.plain else _by_states(writer, items, names)


def _by_bits(writer: Writer, plan: ArrayPlan, names: list[str]) -> list[str]:
    """A bit for each value in the rules' parameter."""
    first, after = writer.fresh(), writer.fresh()
    high = len(names) if plan.high is None else min(plan.high, len(names))
    end = f'"]" %if bit_count_ge(_, {plan.low})' if plan.low else '"]"'
    writer.rule(f"{after}::_", [end, f"{writer.comma} {first}::_ %if bit_count_lt(_, {high})"])
    writer.rule(
        f"{first}::_",
        [f"{name} {after}::set_bit({bit}) %if bit_clear({bit})" for bit, name in enumerate(names)],
    )
    return [*(['"[""]"'] if plan.low == 0 else []), *([f'"["{first}::0'] if high else [])]


def _by_states(writer: Writer, items: DistinctItems, names: list[str]) -> list[str]:
    """A rule for each state of the automaton."""
    rules = {state: writer.fresh() for state in items.edges}

    def steps(state: Choices, lead: str) -> list[str]:
        return [f"{lead}{names[number]} {rules[following]}" for number, following in items.edges[state]]

    for state, rule in rules.items():
        if state != items.start:
            writer.rule(rule, [*(['"]"'] if items.accepts(state) else []), *steps(state, f"{writer.comma} ")])
    empty = ['"[""]"'] if items.accepts(items.start) else []
    return [*empty, *steps(items.start, '"["')]


def _any_of(writer: Writer, writings: list[Any]) -> str:
    """The symbol of one value, which may have its keys in several orders."""
    if writer.layout.order == "any" or len(writings) == 1:
        return _value(writer, writings[0])
    name = writer.fresh()
    writer.rule(name, [_value(writer, value) for value in writings])
    return name


def _value(writer: Writer, value: Any) -> str:
    """The symbol of one value, however it may be written."""
    if isinstance(value, str):
        return writer.string(Language.literal(value))
    if isinstance(value, bool) or value is None:
        return f'"{json.dumps(value)}"'
    if isinstance(value, int | float):
        return writer.terminal(number_texts(value, writer.layout.canonical))
    name = writer.fresh()
    if isinstance(value, list):
        inner = f" {writer.comma} ".join(_value(writer, item) for item in value)
        writer.rule(name, [f'"["{inner}"]"'])
        return name
    pairs = [f"{writer.key_of(Language.literal(key))} {_value(writer, item)}" for key, item in value.items()]
    if writer.layout.order == "schema" or len(pairs) <= 1:
        inner = f" {writer.comma} ".join(pairs)
        writer.rule(name, [f'"{{"{inner}"}}"'])
    else:
        _in_any_order(writer, name, pairs)
    return name


def _in_any_order(writer: Writer, name: str, pairs: list[str]) -> None:
    """The rule `name` for an object of all of `pairs`: a bit for each that is there."""
    member, after = writer.fresh(), writer.fresh()
    writer.rule(name, [f'"{{"{member}::0'])
    writer.rule(
        f"{member}::_", [f"{pair} {after}::set_bit({bit}) %if bit_clear({bit})" for bit, pair in enumerate(pairs)]
    )
    some_left = f"bit_count_lt(_, {len(pairs)})"
    writer.rule(f"{after}::_", [f'"}}" %if is_ones([0:{len(pairs)}])', f"{writer.comma} {member}::_ %if {some_left}"])


def array_alternatives(writer: Writer, plan: ArrayPlan) -> list[str]:
    """Alternatives of a rule for the arrays of `plan`."""
    items = DistinctItems.of(writer.graph.finite, plan) if _may_repeat(plan) else None
    if items is not None:
        return distinct_alternatives(writer, plan, items)
    return _counted(writer, plan) if plan.counts else _plain(writer, plan)


def needs_distinct_items(graph: Graph, plan: ArrayPlan) -> bool:
    """Tells whether elements must differ, and the rule for `plan` does not see to it."""
    return _may_repeat(plan) and DistinctItems.of(graph.finite, plan) is None


def _may_repeat(plan: ArrayPlan) -> bool:
    """Tells whether elements must differ, and there can be two."""
    return bool(plan.unique) and (plan.high is None or plan.high > 1)


def _plain(writer: Writer, plan: ArrayPlan) -> list[str]:
    """Elements in order: those of the prefix in a chain of rules, the rest in a repetition."""
    alternatives = ['"[""]"'] if plan.low == 0 else []
    if plan.high == 0:
        return alternatives
    nodes = [writer.node(node) for node in plan.prefix[: plan.high] or (plan.rest,)]
    text = f'{_more(writer, plan, len(nodes))}"]"'
    for index in range(len(nodes) - 1, 0, -1):
        text = f"{writer.comma} {nodes[index]} {text}"
        if index >= plan.low:
            name = writer.fresh()
            writer.rule(name, ['"]"', text])
            text = name
    return [*alternatives, f'"["{nodes[0]} {text}']


def _more(writer: Writer, plan: ArrayPlan, num_before: int) -> str:
    """Returns what may stand between element `num_before` - 1 and the closing bracket."""
    low = max(plan.low - num_before, 0)
    high = None if plan.high is None else plan.high - num_before
    if high == 0:
        return ""
    item = f"({writer.comma} {writer.node(plan.rest)})"
    if high is None:
        return f"{item}*" if low == 0 else f"{item}{{{low},}}"
    return f"{item}{{{low},{high}}}"


def _counted(writer: Writer, plan: ArrayPlan) -> list[str]:
    """A rule for each state of the automaton that counts."""
    counting = Counting(plan, writer.graph.cost)
    names: dict[State, str] = {state: writer.fresh() for state in counting.edges}

    def steps(state: State, lead: str) -> list[str]:
        merged: dict[tuple[Node, State], None] = dict.fromkeys(counting.edges[state])
        return [f"{lead}{writer.node(node)} {names[following]}" for node, following in merged]

    for state, name in names.items():
        if state == counting.start and state[0] == 0 and not _reached_again(counting):
            continue
        writer.rule(name, [*(['"]"'] if counting.accepts(state) else []), *steps(state, f"{writer.comma} ")])
    empty = ['"[""]"'] if counting.accepts(counting.start) else []
    return [*empty, *steps(counting.start, '"["')]


def _reached_again(counting: Counting) -> bool:
    return any(following == counting.start for out in counting.edges.values() for _, following in out)


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_$@. -]+")
"""Written as it is, in JSON and in Lark."""

NUM_BITS = 64
"""Bits in the parameter of a rule."""

MAX_ITEMS = 1980
"""Items of the parser's row, which holds 2,000, for the keys of an object that may be the next."""


def object_alternatives(writer: Writer, plan: ObjectPlan) -> list[str]:
    """Alternatives of a rule for the objects of `plan`."""
    if not plan.named and not plan.wanted and plan.low <= 1:
        return _map(writer, plan)
    return _Members(writer, plan).write()


def needs_distinct_keys(plan: ObjectPlan) -> bool:
    """Tells whether a key written twice could pass for two, or for one with the right value and one with another."""
    if not plan.counted:
        return False
    return bool(plan.wanted) or (plan.low > 1 and (bool(plan.others) or len(plan.named) > NUM_BITS // 2))


def unseen_places(graph: Graph) -> frozenset[Place]:
    """The places where elements, or keys, must differ in ways that the rules do not see to."""
    found: set[Place] = set()
    for values in graph.values.values():
        for array in values.arrays:
            if needs_distinct_items(graph, array):
                found |= array.unique
        for plan in values.objects:
            if needs_distinct_keys(plan):
                found |= plan.counted
    return frozenset(found)


def _name(writer: Writer, key: Key) -> str:
    """The name of the terminal for a key and what stands before its value."""
    if key.name is None:
        return writer.key_of(key.language)
    if _PLAIN_NAME.fullmatch(key.name):
        return writer.key(key.name)
    return writer.key_of(Language.literal(key.name))


def _pair(writer: Writer, key: Key) -> str:
    """A key with its value."""
    return f"{_name(writer, key)} {writer.node(key.node)}"


def _pair_of(writer: Writer, keys: Sequence[Key]) -> str:
    """One of `keys` with its value."""
    if len(keys) == 1:
        return _pair(writer, keys[0])
    name = writer.fresh()
    writer.rule(name, [_pair(writer, key) for key in keys])
    return name


def _map(writer: Writer, plan: ObjectPlan) -> list[str]:
    """Alternatives for an object of whose keys none is known by name."""
    alternatives = ['"{""}"'] if plan.low == 0 else []
    if plan.others and plan.high != 0:
        pair = _pair_of(writer, plan.others)
        times = "*" if plan.high is None else f"{{0,{plan.high - 1}}}"
        more = f"({writer.comma} {pair}){times}" if plan.high != 1 else ""
        alternatives.append(f'"{{"{pair}{more}"}}"')
    return alternatives


class _Members:
    """The members of one object. The rules' parameter knows which keys there are, and how many.

    Bits [0, r): the required keys, those of `wanted` among them; [r, n): the other named ones, as many as there is room
    for; [n, n + c): how many keys are not required, as far as `low` and `high` ask for it. A key without a bit may come
    twice: the last one counts, and is right as well.
    """

    def __init__(self, writer: Writer, plan: ObjectPlan) -> None:
        self._writer = writer
        self._required = [*(key for key in plan.named if key.required), *plan.wanted]
        self._optional = [key for key in plan.named if not key.required]
        self._others = plan.others
        self._plan = plan
        self._low = max(plan.low - len(self._required), 0)
        self._high = None if plan.high is None else plan.high - len(self._required)
        if self._high is not None and not self._others and self._high >= len(self._optional):
            self._high = None
        top = max(self._low, self._high or 0)
        self._counter_bits = top.bit_length() if self._low or self._high is not None else 0
        implied = {name for trigger, keys in plan.implications for name in (trigger, *keys)}
        tracked = [*self._required, *sorted(self._optional, key=lambda key: key.name not in implied)]
        room = NUM_BITS - self._counter_bits
        self._bits = {id(key): bit for bit, key in enumerate(tracked[:room])}
        self._stop = len(self._bits)
        self._all_tracked = len(tracked) <= room
        self._too_many = len(self._required) > room
        if any(key.name in implied for key in tracked[room:]):
            raise GrammarTooComplexError(f"more than {NUM_BITS} keys of an object imply others")
        self._counter = f"[{self._stop}:{self._stop + self._counter_bits}]"

    def write(self) -> list[str]:
        """Alternatives of the object's rule."""
        if self._too_many and (self._plan.wanted or self._counter_bits or self._plan.implications):
            raise GrammarTooComplexError(f"an object has more than {NUM_BITS} required keys")
        ordered = self._writer.layout.order == "schema" or (len(self._plan.named) == 1 and not self._others)
        in_order = self._too_many or (ordered and not self._plan.wanted)
        self._check_open_keys(in_order=in_order)
        if in_order:
            return _InOrder(self._writer, self._plan, self).write()
        writer = self._writer
        after, member = writer.fresh(), writer.fresh()
        alternatives = [self.member(key, after, [f"bit_clear({self._bits[id(key)]})"]) for key in self._required]
        room = [] if self._high is None else [f"lt({self._counter}, {self._high})"]
        if self._high != 0:
            for key in self._optional:
                bit = self._bits.get(id(key))
                fresh = [] if bit is None else [f"bit_clear({bit})"]
                alternatives.append(self.member(key, after, [*fresh, *room]))
            alternatives += [self.member(key, after, room) for key in self._others]
        empty = [] if self._required or self._low else ['"{""}"']
        if not alternatives:
            return empty
        writer.rule(f"{member}::_", alternatives)
        more = self._goes_on()
        another = [] if more == "never" else [f"{writer.comma} {member}::_{more}"]
        writer.rule(f"{after}::_", [f'"}}"{self.ends()}', *another])
        return [*empty, f'"{{"{member}::0']

    def _check_open_keys(self, *, in_order: bool) -> None:
        """Raises GrammarTooComplexError if too many keys may come at one place."""
        runs = groupby(self._plan.named, key=lambda key: in_order and key.required)
        num_open = max((sum(1 for _ in keys) for required, keys in runs if not required), default=0)
        # In order, leaving a key out takes items, too: a rule where keys are counted, else a group and its rest.
        most = MAX_ITEMS // (1 if not in_order else 2 if self._counter_bits or self._plan.implications else 3)
        if num_open > most:
            message = (
                f"an object has {num_open} keys that may come in the same place, and at most {most} can be told apart"
            )
            raise GrammarTooComplexError(f"{message}: require some of them, or nest them in objects of their own")

    def member(self, key: Key, following: str, conditions: list[str]) -> str:
        """A key with its value, and what the parameter is then."""
        writer = self._writer
        condition = f" %if {_all(conditions)}" if conditions else ""
        bit = self._bits.get(id(key))
        counted = bool(self._counter_bits) and not key.required
        if bit is None:
            change = f"::incr({self._counter})" if counted else "::_"
            return f"{_pair(writer, key)} {following}{change}{condition}"
        if not counted:
            return f"{_pair(writer, key)} {following}::set_bit({bit}){condition}"
        # A rule changes its parameter in one way only, and one of a single symbol would lose the change.
        name, rest = _name(writer, key), writer.fresh()
        writer.rule(f"{rest}::_", [f"{writer.node(key.node)} {following}::incr({self._counter})"])
        return f"{name} {rest}::set_bit({bit}){condition}"

    def ends(self) -> str:
        """The condition under which the object may end."""
        conditions = [f"is_ones([0:{len(self._required)}])"] if self._required else []
        if self._low:
            conditions.append(f"ge({self._counter}, {self._low})")
        bits = {key.name: self._bits[id(key)] for key in self._plan.named if id(key) in self._bits}
        for name, keys in self._plan.implications:
            demanded = [f"bit_set({bits[key]})" for key in keys if key != name]
            if demanded:
                conditions.append(f"or(bit_clear({bits[name]}), {_all(demanded)})")
        return f" %if {_all(conditions)}" if conditions else ""

    def _goes_on(self) -> str:
        """The condition under which another key can come."""
        if self._others and self._high is None:
            return ""
        num_required, num_named = len(self._required), len(self._required) + len(self._optional)
        options: list[str] = [f"not(is_ones([0:{num_required}]))"] if num_required else []
        free: list[str] = []
        if self._high is not None:
            free.append(f"lt({self._counter}, {self._high})")
        if not self._others and self._all_tracked and num_named > num_required:
            num_optional = num_named - num_required
            free.append(f"bit_count_lt([{num_required}:{num_named}], {num_optional})")
        if (self._others or num_named > num_required) and self._high != 0:
            if not free:
                return ""
            options.append(_all(free))
        if not options:
            return "never"
        return f" %if {_any(options)}"

    @property
    def counted(self) -> bool:
        """Tells whether the number of keys that are not required matters."""
        return bool(self._counter_bits)

    @property
    def counter(self) -> str:
        return self._counter

    @property
    def room(self) -> tuple[int, int | None]:
        """Returns how many keys there can be beside the required ones."""
        return self._low, self._high

    def bit(self, key: Key) -> int:
        return self._bits[id(key)]


class _InOrder:
    """Keys in the schema's order, then all others: a chain of rules, each with the choice to leave its key out.

    Where the number of keys or what they imply matters, the rules' parameter is that of `_Members`.
    """

    def __init__(self, writer: Writer, plan: ObjectPlan, members: _Members) -> None:
        self._writer = writer
        self._plan = plan
        self._members = members
        self._low, self._high = members.room
        self._parametric = members.counted or bool(plan.implications)

    def write(self) -> list[str]:
        """Alternatives of the object's rule."""
        if not self._parametric:
            return self._plain()
        writer = self._writer
        empty, filled = self._end()
        for index in reversed(range(len(self._plan.named))):
            key = self._plan.named[index]
            taken = self._members.member(key, filled, self._taken(index))
            left = "" if key.required else f"{{}}::_{self._condition(self._left(index))}"
            rules = []
            for lead, skipped in (("", empty), (f"{writer.comma} ", filled)):
                name = writer.fresh()
                alternatives = [] if not key.required and self._high == 0 else [f"{lead}{taken}"]
                writer.rule(f"{name}::_", [*alternatives, *([left.format(skipped)] if left else [])])
                rules.append(name)
            empty, filled = rules
        return [f'"{{"{empty}::0']

    def _plain(self) -> list[str]:
        """Writes an object in which nothing has to be counted: an alternative for each key that may come first."""
        writer, comma = self._writer, self._writer.comma
        named = [key for key in self._plan.named if key.required or self._high != 0]
        num_leading = next((index for index, key in enumerate(named) if key.required), len(named))
        others = _pair_of(writer, self._plan.others) if self._plan.others and self._high != 0 else ""
        rest = f'({comma} {others})*"}}"' if others else '"}"'  # what may follow a key
        firsts = []
        if num_leading == len(named):
            if others and named:
                rest = self._shared(rest)
            firsts = ['"{""}"', *([f'"{{"{others} {rest}'] if others else [])]
        for index in reversed(range(len(named))):
            pair = _pair(writer, named[index])
            if index <= num_leading:
                rest = self._shared(rest) if index else rest
                firsts.append(f'"{{"{pair} {rest}')
            rest = f"{comma} {pair} {rest}" if named[index].required else f"({comma} {pair})? {rest}"
        return firsts

    def _shared(self, text: str) -> str:
        """A rule for what is needed more than once."""
        if text == '"}"':
            return text
        name = self._writer.fresh()
        self._writer.rule(name, [text])
        return name

    def _end(self) -> tuple[str, str]:
        """Rules for what follows the named keys: after none of them, and after some."""
        writer, members = self._writer, self._members
        empty, filled = writer.fresh(), writer.fresh()
        close = f'"}}"{members.ends()}'
        room = [] if self._high is None else [f"lt({members.counter}, {self._high})"]
        others = [members.member(key, filled, room) for key in self._plan.others] if self._high != 0 else []
        writer.rule(f"{filled}::_", [close, *(f"{writer.comma} {member}" for member in others)])
        writer.rule(f"{empty}::_", [close, *others])
        return empty, filled

    def _taken(self, index: int) -> list[str]:
        """Returns when a key may be written: there is room, and what it implies was not left out before it."""
        named = self._plan.named
        key = named[index]
        conditions: list[str] = []
        if not key.required and self._high is not None:
            conditions.append(f"lt({self._members.counter}, {self._high})")
        implied = {name for trigger, keys in self._plan.implications if trigger == key.name for name in keys}
        conditions += [f"bit_set({self._members.bit(other)})" for other in named[:index] if other.name in implied]
        return conditions

    def _left(self, index: int) -> list[str]:
        """Returns when a key may be left out: nothing before it implies it, and enough others are still to come."""
        named = self._plan.named
        conditions: list[str] = []
        num_left = sum(not key.required for key in named[index + 1 :])
        if not self._plan.others and self._low > num_left:
            conditions.append(f"ge({self._members.counter}, {self._low - num_left})")
        triggers = {trigger for trigger, keys in self._plan.implications if named[index].name in keys}
        conditions += [f"bit_clear({self._members.bit(other)})" for other in named[:index] if other.name in triggers]
        return conditions

    @staticmethod
    def _condition(conditions: list[str]) -> str:
        return f" %if {_all(conditions)}" if conditions else ""


def _all(conditions: list[str]) -> str:
    result = conditions[-1]
    for condition in reversed(conditions[:-1]):
        result = f"and({condition}, {result})"
    return result


def _any(conditions: list[str]) -> str:
    result = conditions[-1]
    for condition in reversed(conditions[:-1]):
        result = f"or({condition}, {result})"
    return result


def emit(graph: Graph, order: Order) -> str:
    """The grammar of the values of the graph's root. Raises GrammarTooComplexError."""
    writer = Writer(graph, LAYOUTS[order], scalars)
    start = writer.node(graph.root)
    while writer.waiting:
        name, node = writer.waiting.pop()
        writer.rule(name, _alternatives(writer, graph.values[node]))
    return writer.text(start)


def _alternatives(writer: Writer, values: Values) -> list[str]:
    if values.anything:
        return _anything(writer)
    result = scalars(writer, values)
    for array in values.arrays:
        result += array_alternatives(writer, array)
    for plan in values.objects:
        result += object_alternatives(writer, plan)
    return result


def _anything(writer: Writer) -> list[str]:
    string, value = writer.string(Language.ANY), writer.node(frozenset())
    pair, comma = f"{writer.key_of(Language.ANY)} {value}", writer.comma
    number = NumberSet().terminal(writer.layout.canonical)
    assert number is not None
    return [
        *writer.one_of([string, number, '"true"', '"false"', '"null"']),
        *('"[""]"', f'"["{value}({comma} {value})*"]"'),
        *('"{""}"', f'"{{"{pair}({comma} {pair})*"}}"'),
    ]
