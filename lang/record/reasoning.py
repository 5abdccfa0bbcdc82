"""`separate_reasoning`: splits a generation into two variables, the answer and the reasoning before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import msgspec

from ...constrain.spec import GrammarSpec, Structural
from ...runtime.protocol.errors import RequestError
from ...runtime.tokenizer.reasoning import KIMI, THINK, Marks, split_reasoning
from ..types.schema import alone
from .expression import Expression, Generate, Series, items_of


class _Style(NamedTuple):
    marks: Marks
    opened: bool = False
    """The chat template writes the begin mark itself, or the model writes none."""


_STYLES = {
    "deepseek-r1": _Style(THINK, opened=True),
    "deepseek-v3": _Style(THINK),
    "glm45": _Style(THINK),
    "kimi": _Style(KIMI),
    "kimi_k2": _Style(KIMI),
    "qwen3": _Style(THINK),
    "qwen3-thinking": _Style(THINK, opened=True),
    "step3": _Style(THINK, opened=True),
}


@dataclass(frozen=True, slots=True)
class Separated:
    """Reads one of the two from what was written: the reasoning, or the answer, as `convert` says.

    opened   the begin mark was written before
    """

    which: Literal["reasoning", "answer"]
    marks: Marks
    opened: bool
    convert: Callable[[str], Any] = str

    def part(self, text: str) -> str:
        """Its text alone."""
        parts = split_reasoning(text, self.marks, opened=self.opened)
        return parts.reasoning if self.which == "reasoning" else parts.answer

    def __call__(self, text: str) -> Any:
        return self.convert(self.part(text))


@dataclass(frozen=True, slots=True, eq=False)
class Reasoned(Expression):
    """A generation, of which `convert` reads what is kept under its name, and `reasoning` what is under
    `{name}_reasoning_content`."""

    generate: Generate
    convert: Separated
    reasoning: Separated


def separate_reasoning(expression: str | Expression | None = None, model_type: str | None = None) -> Expression:
    """Splits each generation in `expression` into two variables: `s[name]` is the answer, and
    `s[f"{name}_reasoning_content"]` the reasoning before it ("" if there is none).

    model_type   determines the markers around the reasoning; None: `<think>` and `</think>`

    A constraint of the generation applies to the answer. The branch continues with the whole text.

    >>> s += assistant(separate_reasoning(gen("answer", max_tokens=512), model_type="qwen3"))

    Raises:
        RequestError: the model type is unknown.
    """
    style = _STYLES.get(model_type) if model_type is not None else _Style(THINK)
    if style is None:
        known = ", ".join(sorted(_STYLES))
        raise RequestError(f"model_type must be one of {known}; got {model_type!r}", param="model_type")
    return Series(tuple(_separated(expression or "", style)))


def _separated(expression: str | Expression, style: _Style) -> Iterator[str | Expression]:
    for item in items_of(expression):
        yield _reasoned(item, style) if isinstance(item, Generate) else item


def _reasoned(item: Generate, style: _Style) -> Expression:
    if item.retries is not None:
        raise RequestError(
            "retries cannot be used with separate_reasoning: read the answer, and ask again yourself", param="retries"
        )
    grammar, options = alone(item.grammar, item.options)
    return Reasoned(
        replace(item, grammar=_after(grammar, style.marks.end), options=options),
        Separated("answer", *style, convert=item.convert),
        Separated("reasoning", *style),
    )


def _after(grammar: GrammarSpec | None, end: str) -> GrammarSpec | None:
    """The constraint, for what follows the reasoning."""
    if grammar is None:
        return None
    if isinstance(grammar, Structural):
        return msgspec.structs.replace(grammar, reasoning_end=end)
    return Structural(reasoning_end=end, then=grammar)
