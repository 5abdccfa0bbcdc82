"""Log-probabilities of tokens in OpenAI's two forms: of chats, and of completions."""

from __future__ import annotations

from collections.abc import Iterable

from ...runtime.protocol.request import TokenLogprob
from ...runtime.tokenizer.tokenizer import Tokenizer
from .objects import CompletionLogprobs, ContentLogprob, TopLogprob

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not have."""


def token_text(token: int, tokenizer: Tokenizer) -> tuple[str, bytes]:
    """A token's text and bytes. Part of a character is shown as OpenAI does: `bytes:\\xe2\\x82`."""
    piece = b"".join(tokenizer.pieces([token], skip_special_tokens=False))
    try:
        return piece.decode(), piece
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece), piece


def chat_logprobs(entries: Iterable[TokenLogprob], tokenizer: Tokenizer) -> list[ContentLogprob]:
    result = []
    for entry in entries:
        text, piece = token_text(entry.token, tokenizer)
        top = []
        for token, logprob in entry.top:
            other, other_piece = token_text(token, tokenizer)
            top.append(TopLogprob(other, max(logprob, LOWEST), list(other_piece)))
        result.append(ContentLogprob(text, max(entry.logprob, LOWEST), list(piece), top))
    return result


class LogprobLists:
    """The parallel lists of a completion's choice, which grow with its tokens; offsets count characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def unknown(self, token: int) -> CompletionLogprobs:
        """The first token of a prompt: it follows nothing."""
        text = token_text(token, self._tokenizer)[0]
        return CompletionLogprobs([text], [None], [None], [self._advance(text)])

    def known(self, entries: Iterable[TokenLogprob]) -> CompletionLogprobs:
        lists = CompletionLogprobs([], [], [], [])
        for entry in entries:
            text = token_text(entry.token, self._tokenizer)[0]
            logprob = max(entry.logprob, LOWEST)
            top = {token_text(token, self._tokenizer)[0]: max(value, LOWEST) for token, value in entry.top}
            lists.tokens.append(text)
            lists.token_logprobs.append(logprob)
            lists.top_logprobs.append({**top, text: logprob})
            lists.text_offset.append(self._advance(text))
        return lists

    def _advance(self, text: str) -> int:
        start = self._offset
        self._offset += len(text)
        return start


def joined(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    lists = CompletionLogprobs([], [], [], [])
    for part in parts:
        lists.tokens += part.tokens
        lists.token_logprobs += part.token_logprobs
        lists.top_logprobs += part.top_logprobs
        lists.text_offset += part.text_offset
    return lists
