"""Requests for generations, and their outputs. Also the wire format between processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...constrain.receipt import Receipt
from ...constrain.spec import GrammarSpec
from .errors import ErrorInfo
from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]

CACHED, PREFILLED, SAMPLED, FORCED, UNUSED = 0, 1, 2, 3, 4
"""Origin of a token: found in the prefix cache, computed as prompt, chosen by the model, forced by the grammar;
or appended by a program and never computed, since nothing was generated after it."""


class TokenTree(msgspec.Struct, frozen=True, array_like=True):
    """The last tokens of a prompt as a tree, computed as if each path through it were a separate prompt.

    parents    for each of them, the index in the prompt of the token that it follows; -1: none
    targets    for each prompt token from `score_from - 1` on, tokens that may follow it
    """

    parents: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation to run.

    id            unique among live requests
    prompt        token ids, at least one
    grammar       what the output must conform to
    namespace     prefixes are shared only between requests of one namespace
    score_from    if given, nothing is generated (`sampling.max_tokens` is 0): the log-probability of each prompt
                  token from this index (>= 1) on is returned
    tree          the prompt's last tokens are no line but a tree, which begins at `score_from` (if that is not 1): the
                  log-probabilities of its targets are returned: one entry a token, with the further ones in its `top`
    prefix        text, possibly of parts of characters, that the output must begin with and that is not returned:
                  the end of a prompt, taken back so that its tokens can be chosen anew
    priority      smaller runs first among waiting requests
    timeout_s     seconds after which it ends with an error, queueing included
    stream        send an output for each step; else there are two, which costs less: at the first token and at the end
                  (more with log-probabilities: those of many tokens do not wait for the end)
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    grammar: GrammarSpec | None = None
    namespace: str = ""
    score_from: int | None = None
    tree: TokenTree | None = None
    prefix: bytes = b""
    priority: int = 0
    timeout_s: float | None = None
    stream: bool = True


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):  # collections would go through thousands
    """A token with its log-probability, and the most likely alternatives as (token, logprob), likeliest first.

    `logprob` and `top` are of the model's own distribution, before penalties, bias, mask and temperature; `masked` is
    of the distribution after penalties, bias and mask (0.0 for the only token that a grammar allows).
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    masked: float | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one request. `cached_tokens` of `prompt_tokens` were found in the prefix cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Timings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds: waiting for admission, from admission to the first token, from the first to the last token."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The one terminal event of a request. `matched` is the stop string or token id that ended it.

    `constraint` says how the request's constraint was kept, if it had one and was not refused.
    """

    reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    matched: str | int | None = None
    error: ErrorInfo | None = None
    constraint: Receipt | None = None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of a step, or of all of them: text (always whole characters), tokens, their origins, logprobs.

    The first one that follows a computed prompt has `cached_tokens`; the last one, and only it, has `finish`. Deltas
    of text and tokens need not line up: text is held back while it could become part of a stop string or of an
    unfinished character.
    """

    id: str
    text: str = ""
    tokens: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None
