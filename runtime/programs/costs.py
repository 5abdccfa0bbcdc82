"""The cost model of programs: the work that each thing takes, and the bounds of what one program may ask for.

The unit of work is one instruction. Whatever takes longer with its size, such as a copy, counts as one unit for each
so many items (`..._PER_WORK`), so that a few instructions cannot ask for very much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..protocol.program import STATE_LIFE_S
from ..tools.arguments import MAX_ARGUMENT_CHARS

# Bounds

MAX_WORK = 200_000
"""Units of work that one submission may take. With loops a few instructions can ask for very many."""

MAX_STATE_TOKENS = 1 << 22
"""Tokens in all branches of a program: tokens of text, characters of values, and both again where forks repeat them."""

MAX_COMPARED_CHARS = 1 << 22
"""Characters that one condition may compare."""

MAX_HELD_TOKENS = 1 << 25
"""Tokens that the states of all programs hold: past it those that wait for another submission are dropped, then what
needs more fails. What branches share counts once."""

MAX_GIVEN_AGAIN = 8192
"""Instructions and joins that a branch which begins anew is given again, in one go."""

# Memory, in tokens: some 20 bytes

BRANCH_TOKENS = 128
VALUE_TOKENS = 8
NAME_TOKENS = 4
"""A name of a value that is known before a fork, where the fork has to put these together."""

OP_TOKENS = 16
"""An instruction with its place in a queue."""

PART_TOKENS = 4
CHARS_PER_TOKEN = 16
"""Characters of literal text."""

WAITING_CHARS_PER_TOKEN = 4
"""Characters of text that waits to be encoded, or of arguments of a tool that runs: they may be four bytes wide."""

MATCHING_TOKENS = 1 << 17
"""A pattern with what it has learnt of a long text, while that is compared with it."""

# Slices of the engine's time

MAX_SLICE_WORK = 1024
"""Units of work after which the engine makes a step before the program goes on."""

MAX_SLICE_S = 0.02
"""Seconds after which it does: the work of an instruction is not always known in advance."""

TOLD_AT_ONCE = 1 << 16
"""Tokens of a program whose end is told in one go: its texts are put together in a millisecond or two."""

TOLD_CHARS = 1 << 18
"""Characters of texts that one message tells of: some 0.2 ms for who writes it, and for who reads it."""

# Work

COPIED_PER_WORK = 1024
"""Characters or tokens that are copied or compared, or branches that are looked at, in one unit of work."""

ENCODED_PER_WORK = 64
"""Characters that are encoded, or sent to the listener."""

SEARCHED_PER_WORK = 1 << 16
"""Pairs of characters that are compared when a text is looked for in another: some 20 us."""

PATTERN_CHARS_PER_WORK = 16
"""Characters that are matched against a pattern."""

PARTS_PER_WORK = 8
"""Parts of a text or a condition, or instructions that are put into queues."""

CHILDREN_PER_WORK = 4
"""Branches that are made ready to be forked."""

MESSAGES_PER_WORK = 8
"""Messages that a chat template is asked for again, where a new one is put behind them."""

MESSAGES_AT_ONCE = 64
"""Messages behind which a new one is asked for in one go: some 3 ms."""

CHARS_OF_MESSAGE = 128
"""Characters that are encoded in the time in which a template is asked for a message."""

RESTART_WORK = 100
"""Units of work that beginning a branch anew takes, besides its instructions."""

LOOKS_PER_RETRY = 64
"""Branches that are looked at in the time of trying again whether one instruction can go on."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of programs; without limits by default.

    work            units of work of a submission
    tokens          in the state of a program
    held_tokens     in the states of all programs
    argument_chars  characters of all arguments of a tool call
    compared_chars  characters that a condition compares
    life_s          seconds that a state is kept which waits for another submission
    """

    work: float = math.inf
    tokens: float = math.inf
    held_tokens: float = math.inf
    argument_chars: float = math.inf
    compared_chars: float = math.inf
    life_s: float = math.inf


ENGINE_BUDGET = Budget(
    MAX_WORK, MAX_STATE_TOKENS, MAX_HELD_TOKENS, MAX_ARGUMENT_CHARS, MAX_COMPARED_CHARS, life_s=STATE_LIFE_S
)
"""Bounds of a program beside an engine that others use, too."""
