"""Accuracy of `select` over questions with four endings each, in one batch."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")

SHOTS = (
    "Making tea: She boils the water and pours it over the tea leaves. Then she waits a few minutes.\n\n"
    "Painting a wall: He dips the roller into the paint. Then he rolls it up and down the wall.\n\n"
)
QUESTIONS = [
    ("Brushing teeth: She puts toothpaste on the brush.", [
        " Then she brushes her teeth.", " Then she drives the brush to school.",
        " Then the teeth eat a mountain.", " Then she paints the ceiling with soup.",
    ], 0),
    ("Baking bread: He kneads the dough and lets it rise.", [
        " Then he throws the oven out of a plane.", " Then he bakes it in the oven.",
        " Then the dough plays the violin.", " Then he parks the dough in a garage.",
    ], 1),
    ("Playing football: The player kicks the ball.", [
        " The ball reads a newspaper.", " The player sells his shoes to the moon.",
        " The ball flies into the goal.", " The grass cooks a dinner for the ball.",
    ], 2),
    ("Washing a car: He sprays the car with water.", [
        " Then he feeds the car with hay.", " Then the car sings him a lullaby.",
        " Then he folds the car and puts it into a drawer.", " Then he wipes it dry with a towel.",
    ], 3),
]  # fmt: skip


def test_hellaswag_select():
    @sgl.function
    def few_shot_hellaswag(s, question, choices):
        s += SHOTS + question
        s += sgl.select("answer", choices=choices)

    rets = few_shot_hellaswag.run_batch(
        [{"question": question, "choices": choices} for question, choices, _ in QUESTIONS],
        temperature=0,
        num_threads=4,
        progress_bar=False,
    )
    predictions = [choices.index(ret["answer"]) for ret, (_, choices, _) in zip(rets, QUESTIONS, strict=True)]
    right = [prediction == label for prediction, (_, _, label) in zip(predictions, QUESTIONS, strict=True)]
    assert sum(right) / len(right) >= 0.75
    for ret in rets:
        assert sum(ret.probabilities("answer").values()) == pytest.approx(1.0)
