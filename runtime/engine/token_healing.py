"""Token healing: takes back the last tokens of a prompt that other tokens could have gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..protocol.request import Request
from ..tokenizer.tokenizer import Tokenizer

MAX_HEALED_TOKENS = 8


class Healed(NamedTuple):
    """`num_tokens` are taken back; `prefix` is their text, which the output begins with and which is not returned."""

    num_tokens: int = 0
    prefix: bytes = b""


def take_back(prompt: Sequence[int], tokenizer: Tokenizer, *, limit: int | None = None) -> Healed:
    """Finds how much of the end of `prompt`, at most `limit` tokens, some longer token begins with.

    The most that there is: from further back, more tokens can be chosen anew. Control tokens stay, and one token does,
    so that there is a prompt. Nothing is taken back if no token goes on from where the prompt ends.
    """
    most = min(len(prompt) - 1, MAX_HEALED_TOKENS, *([] if limit is None else [limit]))
    found, text = Healed(), b""
    for count in range(1, most + 1):
        token = prompt[-count]
        piece = tokenizer.token_bytes[token] if 0 <= token < len(tokenizer.token_bytes) else None
        if not piece:
            break
        text = piece + text
        if tokenizer.goes_on(text):
            found = Healed(count, text)
    return found


def heal(request: Request, tokenizer: Tokenizer, *, limit: int | None = None) -> Request:
    """Returns a request that asks for token healing without what is taken back of its prompt, `limit` tokens at most.

    One that is healed already, or a score, stays as it is.
    """
    if request.prefix or request.score_from is not None:
        return request
    healed = take_back(request.prompt, tokenizer, limit=limit)
    if not healed.num_tokens:
        return request
    sampling, count = request.sampling, healed.num_tokens
    return msgspec.structs.replace(
        request,
        prompt=request.prompt[:-count],
        prefix=healed.prefix,
        sampling=msgspec.structs.replace(  # with room for the tokens that write again what was taken back
            sampling,
            max_tokens=None if sampling.max_tokens is None else sampling.max_tokens + count,
            min_tokens=sampling.min_tokens and sampling.min_tokens + count,
        ),
    )
