"""The best that any prefix cache could do: the prompts of all requests that a run sent, in one trie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..runtime.protocol.program import Fork, Gen, Join, Op, Piece, Select, Value


@dataclass(frozen=True)
class Sent:
    """A request, with its tokens in any hashable form.

    tokens          of the prompt, and after it what was computed as it was generated
    num_prompt      how many of them are the prompt
    num_matchable   how many could come from a cache: the rest is computed for the sake of its logits
    """

    tokens: tuple[str, ...]
    num_prompt: int
    num_matchable: int


@dataclass(eq=False, slots=True)
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    computed: bool = False  # by a request that would compute it in any case


def fewest_computed(requests: Iterable[Sent]) -> int:
    """Prompt tokens that have to be computed even with an unlimited cache of single tokens.

    Requests in depth-first order reach it: each distinct prefix is computed once.
    """
    root = _Node()
    nodes: list[_Node] = []
    num_always = 0
    for request in requests:
        num_always += request.num_prompt - request.num_matchable
        node = root
        for position, token in enumerate(request.tokens):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
                nodes.append(child)
            node = child
            node.computed |= position >= request.num_matchable
    return num_always + sum(not node.computed for node in nodes)


def sent_requests(
    ops: Sequence[Op], pieces: Iterable[Piece], values: Iterable[Value], split: Callable[[str], Sequence[str]]
) -> list[Sent]:
    """The requests that a traced program sent, its tokens being their texts. `split` gives the tokens of a choice.

    Raises:
        ValueError: the program joins by appending, which a trace does not show.
    """
    texts = {(piece.branch, piece.op): piece.texts for piece in pieces}
    completions = {(value.branch, value.name): value.usage.completion_tokens for value in values}
    branches: dict[int, tuple[str, ...]] = {0: ()}
    num_ops = {0: 0}
    requests = []
    for op in ops:
        before = branches[op.branch]
        appended = texts.get((op.branch, num_ops[op.branch]), ())
        num_ops[op.branch] += 1
        branches[op.branch] = before + appended
        if isinstance(op, Fork):
            branches |= dict.fromkeys(op.children, before)
            num_ops |= dict.fromkeys(op.children, 0)
        elif isinstance(op, Gen):
            # The last token that was generated has not been computed.
            generated = appended[: max(0, completions[op.branch, op.name] - 1)]
            requests.append(Sent(before + generated, len(before), len(before) - 1))
        elif isinstance(op, Select):
            for choice in op.choices:
                prompt = (*before, *split(choice))
                requests.append(Sent(prompt, len(prompt), len(before) - 1))
        elif isinstance(op, Join) and op.mode == "append":
            raise ValueError("a program that joins by appending cannot be analysed")
    return requests
