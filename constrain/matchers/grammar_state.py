"""What stands behind a matcher: where a text is in a grammar."""

from __future__ import annotations

from typing import Protocol


class GrammarState(Protocol):
    """What we use of llguidance's `LLMatcher`. Nothing raises: after an error the state is void, and `is_error`.

    It remembers its last mask by the number of lexemes before it, even if that place is rolled back: what is then
    written instead, with as many lexemes, gets that mask. So no tokens may be taken back after which a mask was made:
    where masks are made ahead, they are a copy's.
    """

    def deep_copy(self) -> GrammarState:
        """An independent one."""

    def is_accepting(self) -> bool:
        """The text may end here."""

    def is_stopped(self) -> bool:
        """Nothing but the end may follow, or there was an error."""

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        """Writes the mask of the next token to that address."""

    def validate_tokens(self, tokens: list[int]) -> int:
        """How many of the tokens can be consumed one after another."""

    def consume_token(self, sampled_token: int) -> bool:
        """Advances; False is an error."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Advances as far as possible; returns by how many."""

    def rollback(self, num_tokens: int) -> bool:
        """Takes tokens back; False is an error."""

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that are forced next."""

    def compute_ff_bytes(self) -> bytes:
        """The bytes that are forced next."""
