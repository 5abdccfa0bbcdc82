"""SGLang's three ways to choose, as objects: for `choices_method=`, or to be called with log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.programs.choices import score_choices
from ...runtime.protocol.program import SelectMethod

__all__ = [
    "ChoicesDecision", "ChoicesSamplingMethod", "greedy_token_selection", "token_length_normalized",
    "unconditional_likelihood_normalized",
]  # fmt: skip

Logprob = Sequence[Any]
"""(log-probability, token id, text); the log-probability of a first token may be None."""


@dataclass
class ChoicesDecision:
    """The choice, and the scores that decided it."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoicesSamplingMethod:
    """A method of choosing. In a program the engine applies it; called directly, it decides by given log-probabilities.

    >>> s += select("word", ["organ", "organism"], choices_method=greedy_token_selection)
    """

    name: SelectMethod

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return self.name == "unconditional_likelihood_normalized"

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Sequence[Logprob]],
        output_token_logprobs: Sequence[Sequence[Logprob]] = (),
        unconditional_token_logprobs: Sequence[Sequence[Logprob]] | None = None,
    ) -> ChoicesDecision:
        """Decides.

        Raises:
            ValueError: the unconditional log-probabilities are needed but not given.
        """
        info: dict[str, Any] = {
            "normalized_prompt_logprobs": normalized_prompt_logprobs,
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
        }
        scores: Sequence[float] = normalized_prompt_logprobs
        logprobs = [_values(tokens) for tokens in input_token_logprobs]
        if self.requires_unconditional_logprobs:
            if unconditional_token_logprobs is None:
                raise ValueError(f"{self.name} needs unconditional_token_logprobs")
            scores = score_choices(self.name, logprobs, [_values(tokens) for tokens in unconditional_token_logprobs])
            info["unconditional_token_logprobs"] = unconditional_token_logprobs
            info["normalized_unconditional_prompt_logprobs"] = scores
        elif self.name == "greedy_token_selection":
            scores = score_choices(self.name, logprobs)
            info["greedy_logprob_matrix"] = _matrix(logprobs)
        best = max(range(len(choices)), key=scores.__getitem__)
        return ChoicesDecision(choices[best], info)


token_length_normalized = ChoicesSamplingMethod("token_length_normalized")
greedy_token_selection = ChoicesSamplingMethod("greedy_token_selection")
unconditional_likelihood_normalized = ChoicesSamplingMethod("unconditional_likelihood_normalized")


def method_name(method: SelectMethod | ChoicesSamplingMethod | Callable[..., object] | None) -> object:
    """The name of a method, given by name or as object; what is neither is given back to be refused."""
    if method is None:
        return "likelihood"
    return method.name if isinstance(method, ChoicesSamplingMethod) else method


def _values(tokens: Sequence[Logprob]) -> list[float]:
    return [0.0 if token[0] is None else float(token[0]) for token in tokens]


def _matrix(logprobs: Sequence[Sequence[float]]) -> list[list[float]]:
    """All choices as long as the longest, filled up by their means."""
    width = max(map(len, logprobs), default=0)
    return [[*values, *[sum(values) / max(len(values), 1)] * (width - len(values))] for values in logprobs]
