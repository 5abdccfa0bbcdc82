"""The instruction set: what a multi-call program compiles to, and the events that its execution sends back.

A program is a list of instructions, each for one branch. Branch 0 is the root. Branches run side by side; the
instructions of one branch run in order. A branch is a list of token ids that the model actually ran: appending never
re-tokenises existing text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from ...constrain.receipt import Receipt
from ...constrain.spec import GrammarSpec
from .condition import Condition, Int, Name
from .condition import Hole as Hole
from .condition import Ref as Ref
from .errors import ErrorInfo
from .request import FinishReason, Timings, TokenLogprob, Usage
from .sampling_params import SamplingParams

SelectMethod = Literal[
    "likelihood", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
JoinMode = Literal["gather", "append"]


Part = str | Ref | Hole


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Appends text. `parts` are literal strings, references to values, and in a template, argument placeholders."""

    branch: Int
    parts: tuple[Part, ...]


class RoleBegin(msgspec.Struct, frozen=True, tag="role_begin"):
    """Opens a message of the chat: appends what the model's chat template puts before its content."""

    branch: Int
    role: Name


class RoleEnd(msgspec.Struct, frozen=True, tag="role_end"):
    """Closes the open message: appends what the template puts after its content."""

    branch: Int


class Offer(msgspec.Struct, frozen=True):
    """Tools that a generation in an assistant message sees.

    tools       their names
    choice      "auto": it may call them. "required": it writes calls and nothing else. "none": it must answer
    only        the one that it may call; "": any
    parallel    it may write several calls
    """

    tools: tuple[Name, ...]
    choice: Literal["auto", "required", "none"] = "auto"
    only: Name = ""
    parallel: bool = True


class Gen(msgspec.Struct, frozen=True, tag="gen"):
    """Generates and appends; the text is kept as `name`. With an `offer` it is an answer, or calls of tools."""

    branch: Int
    name: Name
    sampling: SamplingParams = SamplingParams()
    grammar: GrammarSpec | None = None
    timeout_s: float | None = None
    offer: Offer | None = None


class Select(msgspec.Struct, frozen=True, tag="select"):
    """Appends the likeliest of `choices`, kept as `name`, with the probability of each."""

    branch: Int
    name: Name
    choices: tuple[str, ...]
    method: SelectMethod = "likelihood"


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """Keeps the text of `parts` as `name`, for later references and conditions. Appends nothing.

    With `tell` it is sent as a Value, or as Skipped if there are no parts: for results that depend on a condition.
    """

    branch: Int
    name: Name
    parts: tuple[Part, ...]
    tell: bool = False


class Use(msgspec.Struct, frozen=True, tag="use"):
    """Calls a tool and waits for it. Its result is kept as `name`, and with `append` appended.

    `arguments` are given by name, each as the text of its parts: the value itself if the parameter may be a text,
    otherwise JSON. Of `timeout_s` and the tool's own limit, the smaller one applies.
    """

    branch: Int
    name: Name
    tool: Name
    arguments: tuple[tuple[Name, tuple[Part, ...]], ...] = ()
    append: bool = True
    timeout_s: float | None = None


class CallTools(msgspec.Struct, frozen=True, tag="call_tools"):
    """Makes the calls that the last text of the generation `of` holds, side by side, and waits for all of them.

    If there are any, their results are appended as messages for the model, and a new assistant message is begun. The
    result of a failed call is its error. The calls are kept as `name`, as the JSON of a list of `MadeCall`.
    """

    branch: Int
    name: Name
    of: Name
    tools: tuple[Name, ...]


class MadeCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call written by a model: its arguments as read (a text if they are not a JSON object), and its outcome."""

    name: str
    arguments: Any
    result: str | None = None
    error: str | None = None


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Starts `children`, new branch ids, as copies of this branch.

    isolated    a failure in a child, or in a branch forked from it, ends only that child (BranchFailed)
    retries     a failing isolated child is restarted up to this many times (BranchRestarted)
    """

    branch: Int
    children: tuple[Int, ...]
    isolated: bool = False
    retries: Int = 0


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Waits for `children` to end. With mode "append", what each appended since the fork is appended here, in order;
    except for failed children."""

    branch: Int
    children: tuple[Int, ...]
    mode: JoinMode = "gather"


class When(msgspec.Struct, frozen=True, tag="when"):
    """Executes `then` if the condition holds, else `otherwise`. Both are instructions of this branch, and of branches
    that they fork and join."""

    branch: Int
    condition: Condition
    then: tuple[Op, ...] = ()
    otherwise: tuple[Op, ...] = ()


class Repeat(msgspec.Struct, frozen=True, tag="repeat"):
    """Executes `body` until the condition holds after it, `at_most` times in all.

    A reference in it finds the latest value; a reference from a branch outside waits until the loop is over. Branches
    that the body forks must be joined in it; they are forked again in each turn.
    """

    branch: Int
    body: tuple[Op, ...]
    until: Condition
    at_most: Int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stops this branch and all forked from it immediately, without waiting for earlier instructions. Unfinished
    instructions are abandoned (BranchFailed, code "cancelled"). In a block it can stop only the block's own branch, and
    waits its turn."""

    branch: Int


STATE_LIFE_S = 600.0
"""Time for which an unused state is kept."""

Op = Text | RoleBegin | RoleEnd | Gen | Select | Assign | Use | CallTools | Fork | Join | When | Repeat | Cancel


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A submission: the instructions of a program between two reads.

    id         names the state. A new id starts an empty branch 0; a kept one continues where it stopped.
    ops        instructions in the order they were recorded
    keep       the state stays for another submission; otherwise it is dropped when this one ends
    resume     this submission continues a kept state; it is an error if the state is gone
    trace      send a Piece for every run of tokens (for the timeline)
    deltas     send text as it comes; otherwise values arrive whole, which costs less, after one empty Delta that marks
               the first token
    spec_tokens    if each generation is a separate request: extra tokens that may be requested, to serve the next
                   generations. Ignored by an engine
    """

    id: str
    ops: tuple[Op, ...]
    keep: bool = False
    resume: bool = False
    trace: bool = False
    deltas: bool = True
    namespace: Name = ""
    timeout_s: float | None = None
    spec_tokens: Int = 0


class Delta(msgspec.Struct, frozen=True, tag="delta", omit_defaults=True):
    """Text that was just added to the value `name`.

    Where log-probabilities are asked for, `logprobs` are those of the tokens since the value's last Delta, as far as an
    engine makes them; `token_texts` are the texts of all tokens in them. Those of tokens whose text is held back come
    with that text, or with the Value.
    """

    branch: int
    name: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    token_texts: dict[int, str] = {}


class Value(msgspec.Struct, frozen=True, kw_only=True, tag="value"):
    """A finished value, with what is known about it.

    `samples` are all texts of a Gen with n > 1 (`text` is the first, with which the branch continues). `probabilities`
    and `scores` are a Select's, in the order of its choices; the scores are what its method compares, `choice_logprobs`
    the log-probabilities of each choice's tokens. `token_texts` are the texts of all tokens in `logprobs` and
    `choice_logprobs`. `constraint` is the receipt of a Gen's grammar. In a Repeat a name gets several values: `turn`
    counts them from 0.
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
    choice_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    token_texts: dict[int, str] = {}
    constraint: Receipt | None = None
    turn: int = 0


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A value that will not be made: the When around it took the other path (in a loop: in this turn)."""

    branch: int
    name: str


class BranchFailed(msgspec.Struct, frozen=True, kw_only=True, tag="branch_failed"):
    """An isolated or cancelled branch has ended early, and so have those forked from it. The program continues.

    Every submission that loses instructions this way gets the event, even a later one. `index` counts the submission's
    instructions as in `Failed`; it is None if another one is at fault. Values sent before stay valid.
    """

    branch: int
    error: ErrorInfo
    index: int | None = None


class BranchRestarted(msgspec.Struct, frozen=True, kw_only=True, tag="branch_restarted"):
    """A failed branch is restarted from its fork: its values, and those of branches forked from it, are void.

    For a branch forked in a loop, values of earlier turns stay: `kept` has their number by branch and name, if there
    are any. `attempt` counts from 1.
    """

    branch: int
    attempt: int
    error: ErrorInfo
    kept: dict[int, dict[str, int]] = {}


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A run of tokens of a branch, for the timeline.

    `texts` are the tokens' texts (best effort where a character spans tokens), `origins` where each came from
    (request.CACHED, ...), `start_s` and `stop_s` are seconds since the program began. `op` counts the branch's
    instructions from 0; `kind` is "text", "gen", "select" or "tool" (which has a name and times, but no tokens: what it
    appends is a text of the same `op`); `name` is the value's, if it is one.
    """

    branch: int
    op: int
    kind: Literal["text", "role", "gen", "select", "tool"]
    name: str = ""
    role: str = ""
    texts: tuple[str, ...] = ()
    origins: tuple[int, ...] = ()
    start_s: float = 0.0
    stop_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The submission has ended. `texts` is the whole text of each branch that is still open, `num_tokens` its number of
    tokens; APIs that do not tell have none."""

    usage: Usage = Usage()
    requests: int = 0
    texts: dict[int, str] = {}
    num_tokens: dict[int, int] = {}
    elapsed_s: float = 0.0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The submission has failed at instruction `index` of the program's `ops`. The other branches were stopped.

    `index` counts the instructions in the order in which they were recorded: those in the blocks of a When or Repeat
    come after it (`walk`). It is None if no instruction of this submission is at fault: the program was refused, was
    dropped, or failed in another running submission. `usage` is what the submission had used by then.
    """

    error: ErrorInfo
    branch: int = 0
    index: int | None = None
    usage: Usage = Usage()


class EndTexts(msgspec.Struct, frozen=True, kw_only=True, tag="end_texts"):
    """Texts of some branches, and their numbers of tokens, which belong to the Done that follows: that of a large
    program is sent in parts, so that no single message is large. Clients join them and do not pass these events on
    (`runtime.client.streams.with_whole_ends`)."""

    texts: dict[int, str]
    num_tokens: dict[int, int] = {}


ProgramEvent = Delta | Value | Skipped | BranchFailed | BranchRestarted | Piece | EndTexts | Done | Failed
"""Events of a submission: any number of the others, then exactly one Done or Failed."""


def walk(ops: Iterable[Op]) -> Iterator[Op]:
    """Yields all instructions; those in blocks follow the one that contains them."""
    stack = [iter(ops)]  # a hostile program may nest deeper than Python recurs
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
            continue
        yield op
        if isinstance(op, When):
            stack += [iter(op.otherwise), iter(op.then)]
        elif isinstance(op, Repeat):
            stack.append(iter(op.body))


def named_tools(op: Op) -> tuple[str, ...]:
    """Returns the tools that an instruction itself names."""
    match op:
        case Use(tool=tool):
            return (tool,)
        case CallTools(tools=tools):
            return tools
        case Gen(offer=Offer(tools=tools)):
            return tools
        case _:
            return ()
