"""Token healing: takes back the last tokens of a prompt that a longer token could have covered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..protocol.request import Request
from ..tokenizer.tokenizer import Tokenizer

MAX_HEALED_TOKENS = 8


class Healed(NamedTuple):
    """Number of tokens taken back, and their text: the output must begin with this `prefix`, which is not returned."""

    num_tokens: int = 0
    prefix: bytes = b""


def take_back(prompt: Sequence[int], tokenizer: Tokenizer, *, limit: int | None = None) -> Healed:
    """Finds the longest end of `prompt`, at most `limit` tokens, whose text is a proper prefix of some token.

    The longest end leaves the most tokens to choose anew. Control tokens and the first token of the prompt are never
    taken back. Nothing is taken back if no token continues the end of the prompt.
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
    """Returns `request`, which asks for token healing, without the tokens taken back from its prompt, at most `limit`.

    A request that is already healed or asks for scores is returned unchanged.
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
        sampling=msgspec.structs.replace(  # with room to write again what was taken back
            sampling,
            max_tokens=None if sampling.max_tokens is None else sampling.max_tokens + count,
            min_tokens=sampling.min_tokens and sampling.min_tokens + count,
        ),
    )
