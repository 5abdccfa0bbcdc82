"""Several samples of one generation: a list, of which the first goes on."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def two_questions(s, question_1, question_2):
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8, n=2))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8))


def test_samples_are_a_list():
    state = two_questions.run(question_1="Name a colour.", question_2="And a shape.")
    assert isinstance(state["answer_1"], list)
    assert len(state["answer_1"]) == 2
    assert isinstance(state["answer_2"], str)
    contents = [message["content"] for message in state.messages()]
    assert state["answer_1"][0] in contents


def test_in_a_batch_by_default_of_the_run():
    @sgl.function
    def name(s, thing):
        s += f"A {thing} is called" + sgl.gen("name", max_tokens=3)

    states = name.run_batch([{"thing": "dog"}, {"thing": "cat"}], n=3)
    assert [len(state["name"]) for state in states] == [3, 3]
