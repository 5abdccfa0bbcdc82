"""Refuses requests that cannot run, by name of the field."""

from __future__ import annotations

import math

from ..protocol.counters import ModelInfo
from ..protocol.errors import RequestError
from ..protocol.request import Request


def check_request(request: Request, info: ModelInfo) -> int:
    """The most tokens that `request` may generate (0: none, its prompt is scored).

    Raises:
        RequestError: it cannot run on this model.
    """
    if not request.prompt:
        raise RequestError("the prompt is empty", code="empty_prompt", param="prompt")
    if min(request.prompt) < 0 or max(request.prompt) >= info.vocab_size:
        message = f"a token id of the prompt is not in 0 .. {info.vocab_size - 1}"
        raise RequestError(message, code="invalid_token_id", param="prompt")
    if request.timeout_s is not None and math.isnan(request.timeout_s):
        raise RequestError("timeout_s must be a number of seconds, got nan", param="timeout_s")
    length, limit = len(request.prompt), info.max_request_tokens
    params = request.sampling
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
        if not all(0 <= token < info.vocab_size for token in ids):
            message = f"a token id of {name} is not in 0 .. {info.vocab_size - 1}"
            raise RequestError(message, code="invalid_token_id", param=name)
    if request.tree is not None:
        _check_tree(request, info)
    elif request.score_from is not None and not 1 <= request.score_from < length:
        raise RequestError(f"score_from must be in 1 .. {length - 1}, got {request.score_from}", param="score_from")
    if request.score_from is not None:
        wanted = 0
    else:
        wanted = params.max_tokens if params.max_tokens is not None else limit - length
        if params.max_tokens == 0:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
    if length + wanted > limit or (request.score_from is None and wanted < 1):
        message = f"the prompt has {length} tokens and max_tokens is {wanted}, but {limit} in all is the limit"
        raise RequestError(message, code="context_length_exceeded", param="prompt")
    return wanted


def _check_tree(request: Request, info: ModelInfo) -> None:
    tree, length = request.tree, len(request.prompt)
    assert tree is not None
    first = length - len(tree.parents)
    if request.score_from is None or request.score_from != max(first, 1) or first < 0:
        raise RequestError("score_from must be where the tree begins", param="score_from")
    if not all(-1 <= parent < first + index for index, parent in enumerate(tree.parents)):
        raise RequestError("each parent must come before its child", param="tree")
    if len(tree.targets) != length + 1 - request.score_from or not all(tree.targets):
        raise RequestError("each token from score_from - 1 on needs targets", param="tree")
    if not all(0 <= token < info.vocab_size for targets in tree.targets for token in targets):
        message = f"a token id of the tree's targets is not in 0 .. {info.vocab_size - 1}"
        raise RequestError(message, code="invalid_token_id", param="tree")
