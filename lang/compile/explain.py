"""Explains a program's steps and cost before it runs; for one that cannot be compiled, the reason and what is known."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...runtime.protocol.condition import Hole
from ...runtime.protocol.program import Op, walk
from ...runtime.protocol.template import ResultConstant, Template, refs_of
from ...runtime.templates.fill import fill
from ...runtime.templates.rewrite import parts_in
from ..observe.timelines.text import aligned
from .build import compile_body
from .cost import Bill, Cost, Encoder, Item, itemise
from .listing import MAX_TEXT, listing
from .optimise import optimise
from .placeholder import CompileError, Marks
from .prefix import constant_start
from .signature import parameters_of, stand_ins
from .tracing import trace_start

_HEAD = ("value", "branch", "times", "prompt", "computed", "generated")
_NUMBERS = frozenset({2, 3, 4, 5})


def explain(
    title: str,
    body: Callable[..., Any],
    bound: Mapping[str, Any],
    arguments: Mapping[str, Any],
    defaults: Mapping[str, Any],
    tokenizer: Encoder | None = None,
) -> str:
    """A text for people. The body runs with the arguments in `bound` and `arguments`, and placeholders for the others;
    nothing is generated. What the body raises itself passes through."""
    start = _first_ops(title, body, bound, defaults)
    try:
        plain = compile_body(body, {**bound, **arguments}, defaults, optimisations=()).template
    except CompileError as error:
        return "\n".join(_partly(title, body, {**bound, **arguments}, defaults, error, tokenizer))
    ops = optimise(plain.ops, set(refs_of(plain.result))) or plain.ops
    return "\n".join(_whole(plain, replace(plain, ops=ops), start, tokenizer))


def _first_ops(
    title: str, body: Callable[..., Any], known: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[Op, ...]:
    """Returns what the body records before it looks at what it does not know."""
    marks = Marks(title)
    arguments = stand_ins(body, known, marks)
    return trace_start(title, body, {**arguments, **known}, defaults, marks)


def _whole(plain: Template, template: Template, start: Sequence[Op], tokenizer: Encoder | None) -> Iterator[str]:
    ops = template.ops
    if all(parameter.default is not None for parameter in template.parameters):
        ops, _ = fill(template, {})
    bill = itemise(ops, tokenizer)
    yield listing(template)
    yield ""
    if bill.items:
        yield f"runs as one request to the engine, with {_calls(bill.cost)}"
    else:
        yield "sends no request: nothing is generated, and no tool is used"
        return
    holes = sorted({part.name for op in walk(ops) for part in parts_in(op) if isinstance(part, Hole)})
    yield from _bill(bill, tokenizer)
    if holes:
        yield f"not counted     the text of {', '.join(holes)}: pass a value to count it"
    before, after = _size(plain.ops), _size(ops)
    if after < before:
        yield f"optimised       {before - after} of {before} instructions removed: not needed, or common to branches"
    yield from _shares(bill, start, tokenizer)


def _partly(
    title: str,
    body: Callable[..., Any],
    known: Mapping[str, Any],
    defaults: Mapping[str, Any],
    error: CompileError,
    tokenizer: Encoder | None,
) -> Iterator[str]:
    yield f"program {title} cannot be compiled: {error.message}"
    for place in error.stack:
        yield f"  at {place.file}:{place.line}, in {place.function}"
        source = linecache.getline(place.file, place.line).strip()
        if source:
            yield f"    {source}"
    yield ""
    ops = _first_ops(title, body, known, defaults)
    if not ops:
        yield "It records nothing before that line."
        return
    start = Template(name=title, parameters=tuple(parameters_of(body, known)), ops=ops, result=ResultConstant("null"))
    missing = [one.name for one in parameters_of(body, known) if one.default is None]
    if missing:
        yield f"No value for: {', '.join(missing)}. With one, the program may compile."
    yield "It runs anyway: a request ends where Python needs a value, and the next one continues from there."
    yield "Up to that line it records:"
    yield from listing(start).splitlines()[1:-1]
    yield ""
    bill = itemise(ops, tokenizer)
    yield f"its first request has {_calls(bill.cost)}"
    yield from _bill(bill, tokenizer)
    yield from _shares(bill, ops, tokenizer)


def _bill(bill: Bill, tokenizer: Encoder | None) -> Iterator[str]:
    cost = bill.cost
    if bill.items:
        yield from ("", *aligned([_HEAD, *map(_row, bill.items)], _NUMBERS), "")
    about = "" if cost.counted else "about "
    share = cost.reused_tokens / cost.prompt_tokens if cost.prompt_tokens else 0.0
    yield (
        f"prompt tokens   {about}{cost.prompt_tokens:,} at most; {cost.computed_tokens:,} computed, {share:.0%} from "
        "the cache"
    )
    yield f"generated       {cost.generated_tokens:,} tokens at most"
    chain = " > ".join(f"{name} x{times}" if times > 1 else name for name, times in bill.chain)
    yield f"longest chain   {_number(cost.critical_calls, 'call')}, {cost.critical_tokens:,} tokens: {chain}"
    if tokenizer is None:
        yield "estimated       from the length of the text: the model's tokenizer is not available"


def _shares(bill: Bill, start: Sequence[Op], tokenizer: Encoder | None) -> Iterator[str]:
    about = "" if bill.cost.counted else "about "
    for share in bill.shares:
        children = " ".join(map(str, share.children[:8])) + (" ..." if len(share.children) > 8 else "")
        yield (
            f"shared          {about}{share.num_tokens:,} tokens before the fork into {children}: computed once, not "
            f"{len(share.children)} times"
        )
    first = tuple(constant_start(start))
    num_tokens = itemise(first, tokenizer).uncovered_tokens if first else 0
    if num_tokens:
        yield f"shared          {about}{num_tokens:,} tokens at the start of every run, whatever the arguments"


def _row(item: Item) -> tuple[str, ...]:
    name = item.name if item.kind != "use" else f"{item.name} (tool)"
    tokens = item.prompt_tokens, item.computed_tokens, item.generated_tokens
    shown = ("",) * 3 if item.kind == "use" else (f"{number:,}" for number in tokens)
    return name if len(name) <= MAX_TEXT else f"{name[: MAX_TEXT - 3]}...", str(item.branch), str(item.times), *shown


def _calls(cost: Cost) -> str:
    tools = f" and {_number(cost.tool_calls, 'tool call')}" if cost.tool_calls else ""
    return f"at most {_number(cost.calls, 'model call')}{tools}"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _size(ops: Sequence[Op]) -> int:
    return sum(1 for _ in walk(ops))
