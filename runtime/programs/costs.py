"""Cost model of programs: the work of each operation, and the limits of one program.

The unit of work is one instruction. Operations whose time grows with their size, such as copies, count one unit per so
many items (`..._PER_WORK`), so that a few instructions cannot cause very much work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..protocol.program import STATE_LIFE_S
from ..tools.arguments import MAX_ARGUMENT_CHARS

# Bounds

MAX_WORK = 200_000
"""Most units of work of one submission. With loops, a few instructions can take very many."""

MAX_STATE_TOKENS = 1 << 22
"""Most tokens in all branches of a program: tokens of text and characters of values, counted again in each fork."""

MAX_COMPARED_CHARS = 1 << 22
"""Most characters that one condition may compare."""

MAX_HELD_TOKENS = 1 << 25
"""Most tokens held by the states of all programs: beyond it, states that wait for another submission are dropped, then
operations that need more fail. Content shared by branches counts once."""

MAX_GIVEN_AGAIN = 8192
"""Most instructions and joins that are queued again at once when a branch restarts."""

# Memory, in tokens of about 20 bytes

BRANCH_TOKENS = 128
VALUE_TOKENS = 8
NAME_TOKENS = 4
"""Cost of a value's name that a fork has to merge."""

OP_TOKENS = 16
"""Cost of an instruction with its place in a queue."""

PART_TOKENS = 4
CHARS_PER_TOKEN = 16
"""Characters of literal text per token of memory."""

WAITING_CHARS_PER_TOKEN = 4
"""Characters per token of text that waits to be encoded, or of a running tool's arguments: up to four bytes each."""

MATCHING_TOKENS = 1 << 17
"""Cost of a pattern match in progress, with its learnt states."""

# Slices of the engine's time

MAX_SLICE_WORK = 1024
"""Units of work after which the engine makes a step before the program continues."""

MAX_SLICE_S = 0.02
"""Seconds after which it does so, since the work of an instruction is not always known in advance."""

TOLD_AT_ONCE = 1 << 16
"""Most tokens of a program whose end is reported at once: its texts are assembled in a millisecond or two."""

TOLD_CHARS = 1 << 18
"""Characters of text per message about an end: about 0.2 ms each for the writer and the reader."""

# Work

COPIED_PER_WORK = 1024
"""Characters or tokens copied or compared, or branches examined, per unit of work."""

ENCODED_PER_WORK = 64
"""Characters encoded or sent to the listener per unit of work."""

SEARCHED_PER_WORK = 1 << 16
"""Pairs of characters compared in a text search per unit of work: about 20 us."""

PATTERN_CHARS_PER_WORK = 16
"""Characters matched against a pattern per unit of work."""

PARTS_PER_WORK = 8
"""Parts of a text or a condition, or queued instructions, per unit of work."""

CHILDREN_PER_WORK = 4
"""Branches prepared for a fork per unit of work."""

MESSAGES_PER_WORK = 8
"""Messages that a chat template renders again for a new one, per unit of work."""

MESSAGES_AT_ONCE = 64
"""Most previous messages for which a new one is rendered at once: about 3 ms."""

CHARS_OF_MESSAGE = 128
"""Characters encoded in the time in which a template renders a message."""

RESTART_WORK = 100
"""Units of work for restarting a branch, besides its instructions."""

LOOKS_PER_RETRY = 64
"""Cost of trying a waiting instruction again, in branches examined."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of programs; unlimited by default.

    work            units of work of a submission
    tokens          tokens in the state of a program
    held_tokens     tokens in the states of all programs
    argument_chars  characters of all arguments of a tool call
    compared_chars  characters that a condition compares
    life_s          seconds for which an idle state is kept
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
"""Limits of a program on an engine with other users."""
