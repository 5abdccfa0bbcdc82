"""Rules for objects: keys in any order, or in the schema's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import GrammarTooComplexError
from ...regex.language import Language
from ..open.plans import Key, ObjectPlan
from .writer import Writer

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_$@. -]+")
"""Written as it is, in JSON and in Lark."""

NUM_BITS = 64
"""Of the parameter of a rule."""


def object_alternatives(writer: Writer, plan: ObjectPlan) -> list[str]:
    """Alternatives of a rule for the objects of `plan`."""
    if not plan.named and not plan.wanted and plan.low <= 1:
        return _map(writer, plan)
    return _Members(writer, plan).write()


def needs_distinct_keys(plan: ObjectPlan) -> bool:
    """Whether a key written twice could pass for two, or for one with the right value and one with another."""
    if not plan.counted:
        return False
    return bool(plan.wanted) or (plan.low > 1 and (bool(plan.others) or len(plan.named) > NUM_BITS // 2))


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
    """No key is known by name."""
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
        if self._too_many or (ordered and not self._plan.wanted):
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
        """Whether the number of keys that are not required matters."""
        return bool(self._counter_bits)

    @property
    def counter(self) -> str:
        return self._counter

    @property
    def room(self) -> tuple[int, int | None]:
        """How many keys there are beside the required ones."""
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
        """Where nothing has to be counted: an alternative for each key that may come first."""
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
        """When a key may be written: there is room, and what it implies was not left out before it."""
        named = self._plan.named
        key = named[index]
        conditions: list[str] = []
        if not key.required and self._high is not None:
            conditions.append(f"lt({self._members.counter}, {self._high})")
        implied = {name for trigger, keys in self._plan.implications if trigger == key.name for name in keys}
        conditions += [f"bit_set({self._members.bit(other)})" for other in named[:index] if other.name in implied]
        return conditions

    def _left(self, index: int) -> list[str]:
        """When a key may be left out: nothing before it implies it, and enough others are still to come."""
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
