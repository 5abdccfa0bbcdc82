"""One call of an API for several generations of a message: its surplus text is matched against what follows.

Nothing is guessed: text that does not match, or in which the end of a generation is uncertain, is discarded and
requested anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ....runtime.programs.state import Barrier, Step
from ....runtime.protocol.program import Gen, Op, Select, Text, Use, Value
from ....runtime.protocol.request import Usage
from ....runtime.tools.calls import WrittenCall
from .transcript import Mark


@dataclass(eq=False, slots=True)
class Surplus:
    """Text that the model has written beyond what the program has asked for so far, when it was asked for `op`.

    complete    the model ended there by itself
    num_tokens  of this and what came before it, at most
    """

    text: str
    op: Gen
    complete: bool
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A value that a call brings, the number of requests that took, and what the model wrote beyond it.

    Where the model has called tools, `calls` are its calls and `said` what it wrote before them.
    """

    value: Value
    num_requests: int = 1
    surplus: Surplus | None = None
    said: str = ""
    calls: tuple[WrittenCall, ...] = ()


def after(queue: Iterable[Step | Barrier], branch: int) -> tuple[Op, ...]:
    """Returns the texts and generations that follow in the same message."""
    found: list[Op] = []
    for item in queue:
        op = item.item.op if isinstance(item, Step) else None
        if not isinstance(op, Text | Gen) or op.branch != branch:
            break
        found.append(op)
    return tuple(found)


def worthwhile(op: Gen, ahead: tuple[Op, ...]) -> bool:
    """Returns true if a longer answer may serve generations that come next."""
    return _plain(op) and bool(op.sampling.stop_strings) and any(isinstance(other, Gen) for other in ahead)


def split(op: Gen, text: str, *, complete: bool, num_tokens: int) -> tuple[str, str | None, Surplus] | None:
    """Returns the value that `op` would have got of a longer text, the stop string that ends it, and what is left.

    complete     the model ended the text by itself
    num_tokens   of the text
    None if it is not certain where the value ends.
    """
    sampling = op.sampling
    found = min(((text.index(stop), stop) for stop in sampling.stop_strings if stop in text), default=None)
    if found is None:
        value, stop, rest = text, None, ""
        if not complete:
            return None
    else:
        start, stop = found
        value, rest = text[:start], text[start:]
        if sampling.include_stop:
            value, rest = text[: start + len(stop)], text[start + len(stop) :]
    # A token has a byte at least, so that a text of so many bytes has so many tokens at most.
    most = min(num_tokens, len(value.encode()))
    if sampling.max_tokens is not None and most > sampling.max_tokens:
        return None
    if sampling.min_tokens and stop is not None:
        return None
    return value, stop, Surplus(rest, op, complete, num_tokens)


def take(surplus: Surplus, op: Gen | Select | Use) -> Answer | None:
    """Returns a value out of what was written before; None if it has to be asked for."""
    if not isinstance(op, Gen) or not _plain(op) or not _alike(op, surplus.op) or not surplus.text:
        return None
    found = split(op, surplus.text, complete=surplus.complete, num_tokens=surplus.num_tokens)
    if found is None:
        return None
    text, stop, rest = found
    value = Value(branch=op.branch, name=op.name, text=text, matched=stop, usage=Usage())
    return Answer(value, num_requests=0, surplus=rest)


def match(surplus: Surplus, mark: Mark) -> Surplus | None:
    """Returns what is left of it after `mark` was appended; None if the model wrote something else."""
    if not isinstance(mark, str) or not surplus.text.startswith(mark):
        return None
    return Surplus(surplus.text[len(mark) :], surplus.op, surplus.complete, surplus.num_tokens)


def _plain(op: Gen) -> bool:
    """Returns true for a generation whose text can be told from a longer one."""
    sampling = op.sampling
    odd = sampling.stop_regex, sampling.logprobs is not None, sampling.stop_token_ids, sampling.ignore_eos
    return op.grammar is None and op.offer is None and sampling.n == 1 and not any(odd)


def _alike(one: Gen, other: Gen) -> bool:
    """Returns true if the model would have been asked in the same way, but for where to end."""
    same = {"stop": (), "max_tokens": None, "min_tokens": 0, "include_stop": False}
    return msgspec.structs.replace(one.sampling, **same) == msgspec.structs.replace(other.sampling, **same)
