"""Rules for objects: keys in any order, or in the schema's."""

from __future__ import annotations

import re

from ..errors import GrammarTooComplexError
from ..languages.language import Language
from .plans import Key, ObjectPlan
from .writer import Writer

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_$@. -]+")
"""Written as it is, in JSON and in Lark."""

NUM_BITS = 64
"""Of the parameter of a rule."""


def object_rule(writer: Writer, plan: ObjectPlan) -> str:
    """The name of a new rule for the objects of `plan`."""
    if not plan.named and not plan.wanted and plan.low <= 1:
        return _map(writer, plan)
    return _Members(writer, plan).write()


def needs_distinct_keys(plan: ObjectPlan) -> bool:
    """Whether a key written twice could pass for two, or for one with the right value and one with another."""
    if not plan.counted:
        return False
    return bool(plan.wanted) or (plan.low > 1 and (bool(plan.others) or len(plan.named) > NUM_BITS // 2))


def _key(writer: Writer, key: Key) -> str:
    if key.name is None:
        return writer.string(key.language)
    if _PLAIN_NAME.fullmatch(key.name):
        return writer.terminal(f'"\\"{key.name}\\""')
    return writer.string(Language.literal(key.name))


def _pair(writer: Writer, key: Key) -> str:
    """A key with its value."""
    return f"{_key(writer, key)} {writer.colon} {writer.node(key.node)}"


def _map(writer: Writer, plan: ObjectPlan) -> str:
    """No key is known by name."""
    name = writer.fresh()
    alternatives = ['"{" "}"'] if plan.low == 0 else []
    if plan.others and plan.high != 0:
        pair = writer.fresh()
        writer.rule(pair, [_pair(writer, key) for key in plan.others])
        more = f" ({writer.comma} {pair})" + ("*" if plan.high is None else f"{{0,{plan.high - 1}}}")
        alternatives.append(f'"{{" {pair}{more if plan.high != 1 else ""} "}}"')
    writer.rule(name, alternatives)
    return name


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

    def write(self) -> str:
        """The name of the object's rule."""
        if self._too_many and (self._plan.wanted or self._counter_bits or self._plan.implications):
            raise GrammarTooComplexError(f"an object has more than {NUM_BITS} required keys")
        if self._too_many or (self._writer.layout.order == "schema" and not self._plan.wanted):
            return _InOrder(self._writer, self._plan, self).write()
        writer = self._writer
        start, first, after, member = (writer.fresh() for _ in range(4))
        writer.rule(start, [f'"{{" {first}::0'])
        end = self.ends()
        writer.rule(f"{first}::_", [f'"}}"{end}', f"{member}::_"])
        more = self._goes_on()
        if more != "never":
            writer.rule(f"{after}::_", [f'"}}"{end}', f"{writer.comma} {member}::_{more}"])
        else:
            writer.rule(f"{after}::_", [f'"}}"{end}'])
        alternatives = [self.member(key, after, [f"bit_clear({self._bits[id(key)]})"]) for key in self._required]
        room = [] if self._high is None else [f"lt({self._counter}, {self._high})"]
        if self._high != 0:
            for key in self._optional:
                bit = self._bits.get(id(key))
                fresh = [] if bit is None else [f"bit_clear({bit})"]
                alternatives.append(self.member(key, after, [*fresh, *room]))
            alternatives += [self.member(key, after, room) for key in self._others]
        writer.rule(f"{member}::_", alternatives)
        return start

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
        # A rule changes its parameter in one way only, and one without a terminal of its own would lose the change.
        name, rest = _key(writer, key), writer.fresh()
        writer.rule(f"{rest}::_", [f"{writer.colon} {writer.node(key.node)} {following}::incr({self._counter})"])
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
        self._same = "::_" if self._parametric else ""

    def write(self) -> str:
        """The name of the object's rule."""
        writer, same = self._writer, self._same
        empty, filled = self._end()
        for index in reversed(range(len(self._plan.named))):
            key = self._plan.named[index]
            if self._parametric:
                taken = self._members.member(key, filled, self._taken(index))
            else:
                taken = f"{_pair(writer, key)} {filled}"
            left = "" if key.required else f"{{}}{same}{self._condition(self._left(index))}"
            rules = []
            for lead, skipped in (("", empty), (f"{writer.comma} ", filled)):
                name = writer.fresh()
                alternatives = [] if not key.required and self._high == 0 else [f"{lead}{taken}"]
                writer.rule(name + same, [*alternatives, *([left.format(skipped)] if left else [])])
                rules.append(name)
            empty, filled = rules
        start = writer.fresh()
        writer.rule(start, [f'"{{" {empty}' + ("::0" if self._parametric else "")])
        return start

    def _end(self) -> tuple[str, str]:
        """Rules for what follows the named keys: after none of them, and after some."""
        writer, same = self._writer, self._same
        empty, filled = writer.fresh(), writer.fresh()
        close = '"}"' + (self._members.ends() if self._parametric else "")
        others = self._plan.others if self._high != 0 else ()
        if not others:
            writer.rule(empty + same, [close])
            writer.rule(filled + same, [close])
            return empty, filled
        if not self._parametric:
            pair = writer.fresh()
            writer.rule(pair, [_pair(writer, key) for key in others])
            writer.rule(filled, [f'({writer.comma} {pair})* "}}"'])
            writer.rule(empty, ['"}"', f"{pair} {filled}"])
            return empty, filled
        room = [] if self._high is None else [f"lt({self._members.counter}, {self._high})"]
        members = [self._members.member(key, filled, room) for key in others]
        writer.rule(filled + same, [close, *(f"{writer.comma} {member}" for member in members)])
        writer.rule(empty + same, [close, *members])
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
