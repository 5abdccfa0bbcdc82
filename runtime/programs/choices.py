"""Scores and probabilities of a select's choices, from the log-probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..protocol.program import SelectMethod


def score_choices(
    method: SelectMethod, logprobs: Sequence[Sequence[float]], unconditional: Sequence[Sequence[float]] | None = None
) -> list[float]:
    """Computes a score for each choice, the higher the better.

    logprobs        of each choice's tokens, given the prompt and its previous tokens
    unconditional   the same without the prompt (for the method of that name)

    likelihood                            sum: the probability that the model writes exactly this choice
    token_length_normalized               mean: does not penalise long choices, but favours those of many easy tokens
    greedy_token_selection                token by token, the most likely choices remain
    unconditional_likelihood_normalized   mean gain over the choice's likelihood without the prompt
    """
    match method:
        case "likelihood":
            return [sum(values) for values in logprobs]
        case "token_length_normalized":
            return [_mean(values) for values in logprobs]
        case "greedy_token_selection":
            return _greedy(logprobs)
        case "unconditional_likelihood_normalized":
            assert unconditional is not None
            return [_mean(values) - _mean(base) for values, base in zip(logprobs, unconditional, strict=True)]


def probabilities(scores: Sequence[float]) -> tuple[float, ...]:
    """Softmax of the scores: under "likelihood", the probability of each choice given that one of them is written."""
    most = max(scores)
    if most == -math.inf:  # the model would write none of them
        return (1 / len(scores),) * len(scores)
    weights = [math.exp(score - most) if score > -math.inf else 0.0 for score in scores]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _greedy(logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Scores choices by the first token at which another one is likelier: they drop out there, and later is better.

    A choice that has ended is compared by its mean. The score is the column at which it dropped out; among those that
    dropped out together, the mean decides.
    """
    alive = set(range(len(logprobs)))
    scores = [0.0] * len(logprobs)
    for column in range(max(map(len, logprobs), default=0)):
        values = {i: logprobs[i][column] if column < len(logprobs[i]) else _mean(logprobs[i]) for i in alive}
        best = max(values.values())
        for i in list(alive):
            if values[i] < best:
                alive.discard(i)
            else:
                scores[i] = column + 1.0
    return [score + math.exp(min(_mean(values), 0.0)) for score, values in zip(scores, logprobs, strict=True)]
