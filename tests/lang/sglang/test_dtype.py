"""Types: the values can be converted as if they were text, and be set after the program."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_dtype_gen():
    @sgl.function
    def dtype_gen(s):
        s += "Q: What is the full name of DNS?\n"
        s += "A: The full name is " + sgl.gen("str_res", dtype=str, stop="\n") + "\n"
        s += "Q: Which year was DNS invented?\n"
        s += "A: " + sgl.gen("int_res", dtype=int) + "\n"
        s += "Q: What is the value of pi?\n"
        s += "A: " + sgl.gen("float_res", dtype=float) + "\n"
        s += "Q: Is the sky blue?\n"
        s += "A: " + sgl.gen("bool_res", dtype=bool) + "\n"

    state = dtype_gen.run(max_new_tokens=8)
    state["int_res"] = int(state["int_res"])
    state["float_res"] = float(state["float_res"])
    state["bool_res"] = bool(state["bool_res"])
    assert (type(state["int_res"]), type(state["float_res"]), type(state["bool_res"])) == (int, float, bool)
    assert isinstance(state["str_res"], str)
    assert f'is "{state["str_res"]}"\n' in state.text() or "\\" in state.text()


@pytest.mark.parametrize(("dtype", "kind"), [("int", int), ("float", float), ("str", str), ("string", str)])
def test_types_by_name(dtype, kind):
    @sgl.function
    def value(s):
        s += "Value: " + sgl.gen("x", max_tokens=8, dtype=dtype)

    assert isinstance(value.run(temperature=0)["x"], kind)


def test_four_ways_to_say_the_same():
    @sgl.function
    def years(s):
        s += "It was founded in " + sgl.gen("a", int, max_tokens=6) + ", not in " + sgl.gen("b", 6, type=int)
        s += ", not in " + sgl.gen("c", 6, dtype=int) + ", not in " + sgl.gen("d", schema=int, max_tokens=6)

    assert all(isinstance(value, int) for value in years.run(temperature=0).values().values())
