"""`separate_reasoning`: of what is generated, the answer and the reasoning before it are two variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from ..constrain.spec import GrammarSpec, Structural
from ..runtime.errors import RequestError
from ..runtime.reasoning import KIMI, THINK, Marks, split_reasoning
from .expression import Expression, Generate, Series, items_of
from .numerals import alone


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


@dataclass(frozen=True, slots=True, eq=False)
class Reasoned(Expression):
    """A generation, of which `answer` is kept under its name, and `reasoning` under `{name}_reasoning_content`."""

    generate: Generate
    answer: Callable[[str], str]
    reasoning: Callable[[str], str]

    def convert(self, text: str) -> Any:
        """The value: the answer alone, of the type that was asked for."""
        return self.generate.convert(self.answer(text))


def separate_reasoning(expression: str | Expression | None = None, model_type: str | None = None) -> Expression:
    """Makes two variables of each generation in `expression`: `s[name]` is the answer, and
    `s[f"{name}_reasoning_content"]` what the model reasoned before it ("" if it did not).

    model_type   the marks around the reasoning; None: `<think>` and `</think>`

    A constraint of the generation applies to the answer. The branch goes on with all that was written.

    >>> s += assistant(separate_reasoning(gen("answer", max_tokens=512), model_type="qwen3"))

    Raises:
        RequestError: there is no such model type.
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
    grammar, options = alone(item.grammar, item.options)
    return Reasoned(
        replace(item, grammar=_after(grammar, style.marks.end), options=options),
        lambda text: split_reasoning(text, style.marks, opened=style.opened).answer,
        lambda text: split_reasoning(text, style.marks, opened=style.opened).reasoning,
    )


def _after(grammar: GrammarSpec | None, end: str) -> GrammarSpec | None:
    """The constraint, for what follows the reasoning."""
    if grammar is None:
        return None
    if isinstance(grammar, Structural):
        return msgspec.structs.replace(grammar, reasoning_end=end)
    return Structural(reasoning_end=end, then=grammar)
