"""Variables of the body's own making: stretches of text, copies, values that are set."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_var_scope():
    @sgl.function
    def letter(s, name):
        with s.var_scope("letter"):
            s += "Dear " + name + ","
            s += sgl.gen("body", max_tokens=6)
            s += "\nYours"

    ret = letter.run(name="Anna", temperature=0)
    assert ret["letter"] == "Dear Anna," + ret["body"] + "\nYours" == ret.text()


def test_copy():
    @sgl.function
    def aside(s):
        s += "One, two,"
        with s.copy() as t:
            t += " and in words:" + sgl.gen("words", max_tokens=3)
        s += sgl.gen("next", max_tokens=3)

    ret = aside.run(temperature=0)
    assert len(ret["words"]) == 1
    assert "and in words" not in ret.text()
    assert ret.text() == "One, two," + ret["next"]


def test_values_that_are_set():
    @sgl.function
    def doubled(s, number):
        s.set_var("twice", 2 * number)
        s["text"] = f"{s['twice']}"
        s += "Twice " + str(number) + " is " + s["text"] + "." + sgl.gen("rest", max_tokens=2)
        return s.get_var("twice")

    ret = doubled.run(number=4, temperature=0)
    assert ret.ret_value == 8
    assert ret["text"] == "8"
    assert "twice" in ret
    assert "thrice" not in ret
    ret["later"] = 1
    ret.set_var("rest", ret["rest"].strip())
    assert ret.get_var("later") == 1
    assert ret["rest"] == ret["rest"].strip()


def test_sync_and_error():
    @sgl.function
    def program(s):
        s += "One, two," + sgl.gen("x", max_tokens=2)
        s.sync()
        assert s.error() is None

    state = program.run(temperature=0)
    state.sync()
    assert state.error() is None


def test_names_of_positions():
    @sgl.function
    def program(s):
        forks = s.fork(2, position_ids_offset=None)
        forks += "a" + sgl.gen("x", 1)
        forks.join()
        with pytest.raises(ValueError, match="position_ids_offset"):
            s.fork(2, [0, 1])

    program.run()
