"""The three ways to choose: asked of the engine, and called with log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

import bough as sgl

METHODS = [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]

# Three choices of one, two and eight tokens.
LOGPROBS: dict[str, Any] = {
    "choices": ["star", "starfish", "counterrevolutionaries"],
    "normalized_prompt_logprobs": [-0.2, -0.4, -0.1],
    "input_token_logprobs": [
        [[-0.2, 1, None]],
        [[-0.2, 1, None], [-0.6, 2, None]],
        [[-0.5, 3, None], [-0.2, 4, None], *[[-0.01, 5, None]] * 6],
    ],
    "output_token_logprobs": [[[-0.2, 9, None]]] * 3,
    "unconditional_token_logprobs": [
        [[None, 1, None]],
        [[None, 1, None], [-2.0, 2, None]],
        [[None, 3, None], [-0.2, 4, None], *[[-0.01, 5, None]] * 6],
    ],
}


@pytest.mark.usefixtures("default_backend")
@pytest.mark.parametrize("method", METHODS)
def test_in_a_program(method):
    @sgl.function
    def mood(s, text):
        s += f"Review: {text}\nThe review is"
        s += sgl.select("mood", [" good", " rather bad"], 0.0, method)

    by_object = mood.run("It broke on the first day.")
    assert by_object["mood"] in (" good", " rather bad")

    @sgl.function
    def by_name(s, text):
        s += f"Review: {text}\nThe review is"
        s += sgl.gen("mood", choices=[" good", " rather bad"], choices_method=method.name)

    assert by_name.run("It broke on the first day.")["mood"] == by_object["mood"]


def test_the_longest_has_the_best_mean():
    decision = sgl.token_length_normalized(**LOGPROBS)
    assert decision.decision == "counterrevolutionaries"
    assert decision.meta_info["normalized_prompt_logprobs"] == [-0.2, -0.4, -0.1]


def test_token_by_token():
    decision = sgl.greedy_token_selection(**LOGPROBS)
    assert decision.decision == "star"
    matrix = decision.meta_info["greedy_logprob_matrix"]
    assert matrix[0] == pytest.approx([-0.2] * 8)
    assert matrix[1] == pytest.approx([-0.2, -0.6, *[-0.4] * 6])


def test_against_what_is_likely_anyway():
    decision = sgl.unconditional_likelihood_normalized(**LOGPROBS)
    assert decision.decision == "starfish"
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"][1] == pytest.approx((-0.2 + 1.4) / 2)
    with pytest.raises(ValueError, match="unconditional_token_logprobs"):
        sgl.unconditional_likelihood_normalized(**{**LOGPROBS, "unconditional_token_logprobs": None})
