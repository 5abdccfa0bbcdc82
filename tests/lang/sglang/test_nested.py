"""Programs in programs."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def expand(s, tip):
    s += "Tip: " + tip + "\nIn detail:"
    s += sgl.gen("detailed_tip", max_tokens=4, stop="\n")


def test_values_of_programs_that_run_on_their_own():
    @sgl.function
    def tip_suggestion(s, topic):
        s += "Here are 2 tips for " + topic + ".\n"
        s += "1." + sgl.gen("tip_1", max_tokens=4, stop=["\n", ":", "."]) + "\n"
        s += "2." + sgl.gen("tip_2", max_tokens=4, stop=["\n", ":", "."]) + "\n"
        branch1 = expand(tip=s["tip_1"])
        branch2 = expand(tip=s["tip_2"])
        s += "Tip 1: " + branch1["detailed_tip"] + "\n"
        s += "Tip 2: " + branch2["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary", max_tokens=4)

    state = tip_suggestion.run(topic="staying healthy", temperature=0)
    assert "In detail:" not in state.text()
    assert state.text().endswith("In summary" + state["summary"])
    states = tip_suggestion.run_batch([{"topic": "staying happy"}, {"topic": "saving money"}], temperature=0)
    assert [state.error() for state in states] == [None, None]


def test_instructions_of_another_program():
    @sgl.function
    def both(s):
        s += expand("Drink water")
        s += "\n" + sgl.gen("more", max_tokens=2)

    state = both.run(temperature=0)
    assert state.text().startswith("Tip: Drink water\nIn detail:" + state["detailed_tip"])
