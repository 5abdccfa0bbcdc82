"""The instruction set: what a multi-call program compiles to, and the events that its execution sends back.

A program is a list of instructions, each for one branch. Branch 0 is the root. Branches run side by side; the
instructions of one branch run in order. A branch is a list of token ids that the model really ran: appending never
re-tokenises what is there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..constrain.receipt import Receipt
from ..constrain.spec import GrammarSpec
from .request import ErrorInfo, FinishReason, Timings, TokenLogprob, Usage
from .sampling import SamplingParams

SelectMethod = Literal[
    "likelihood", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
JoinMode = Literal["gather", "append"]


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """A value generated earlier, by name, in a branch: it is put in by the engine once it is there."""

    branch: int
    name: str


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Appends text. `parts` are literal strings and references to generated values."""

    branch: int
    parts: tuple[str | Ref, ...]


class RoleBegin(msgspec.Struct, frozen=True, tag="role_begin"):
    """Opens a message of the chat: appends what the model's chat template puts before its content."""

    branch: int
    role: str


class RoleEnd(msgspec.Struct, frozen=True, tag="role_end"):
    """Closes the open message: appends what the template puts after its content."""

    branch: int


class Gen(msgspec.Struct, frozen=True, tag="gen"):
    """Generates and appends; the text is kept as `name`."""

    branch: int
    name: str
    sampling: SamplingParams = SamplingParams()
    grammar: GrammarSpec | None = None
    timeout_s: float | None = None


class Select(msgspec.Struct, frozen=True, tag="select"):
    """Appends the likeliest of `choices`, kept as `name`, with the probability of each."""

    branch: int
    name: str
    choices: tuple[str, ...]
    method: SelectMethod = "likelihood"


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """Keeps `value` as `name`, so that later references find it. Appends nothing."""

    branch: int
    name: str
    value: str


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Starts `children`, new branch ids, as copies of this branch."""

    branch: int
    children: tuple[int, ...]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Waits for `children` to end. With mode "append", what each appended since the fork is appended here, in order."""

    branch: int
    children: tuple[int, ...]
    mode: JoinMode = "gather"


Op = Text | RoleBegin | RoleEnd | Gen | Select | Assign | Fork | Join


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a program between two reads.

    id         names the state. A new id starts an empty branch 0; a kept one continues where it stopped.
    ops        instructions in the order they were recorded
    keep       the state stays for another stretch; otherwise it is dropped when this one ends
    resume     this stretch continues a kept state; it is an error if the state is gone
    trace      send a Piece for every stretch of tokens (for the timeline)
    """

    id: str
    ops: tuple[Op, ...]
    keep: bool = False
    resume: bool = False
    trace: bool = False
    namespace: str = ""
    timeout_s: float | None = None


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """Text that a Gen has just added to the value `name`."""

    branch: int
    name: str
    text: str


class Value(msgspec.Struct, frozen=True, kw_only=True, tag="value"):
    """A finished value, with what is known about it.

    `samples` are all texts of a Gen with n > 1 (`text` is the first, with which the branch goes on). `probabilities`
    and `scores` are a Select's, in the order of its choices; the scores are what its method compares. `constraint` says
    how a Gen's grammar was kept.
    """

    branch: int
    name: str
    text: str
    finish_reason: FinishReason = "stop"
    matched: str | int | None = None
    usage: Usage = Usage()
    timings: Timings = Timings()
    logprobs: tuple[TokenLogprob, ...] | None = None
    samples: tuple[str, ...] | None = None
    probabilities: tuple[float, ...] | None = None
    scores: tuple[float, ...] | None = None
    constraint: Receipt | None = None


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A stretch of tokens of a branch, for the timeline.

    `texts` are the tokens' texts (best effort where a character spans tokens), `origins` where each came from
    (request.CACHED, ...), `start_s` and `stop_s` are seconds since the program began. `op` counts the branch's
    instructions from 0; `kind` is "text", "gen" or "select"; `name` is the value's, if it is one.
    """

    branch: int
    op: int
    kind: Literal["text", "role", "gen", "select"]
    name: str = ""
    role: str = ""
    texts: tuple[str, ...] = ()
    origins: tuple[int, ...] = ()
    start_s: float = 0.0
    stop_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The stretch has ended. `texts` is the whole text of each branch that is still open."""

    usage: Usage = Usage()
    requests: int = 0
    texts: dict[int, str] = {}
    elapsed_s: float = 0.0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The stretch has failed at instruction `index` of the program's `ops`. The other branches were stopped.

    `index` is None if no instruction of this stretch is to blame: the program was refused, dropped, or failed in
    another stretch that was running.
    """

    error: ErrorInfo
    branch: int = 0
    index: int | None = None


ProgramEvent = Delta | Value | Piece | Done | Failed
"""A stretch sends any number of Delta, Value and Piece, and then exactly one Done or Failed."""
