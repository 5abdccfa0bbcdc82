"""Whole numbers."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_decode_int():
    @sgl.function
    def decode_int(s):
        s += "The number of hours in a day is " + sgl.gen_int("hours") + "\n"
        s += "The number of days in a year is " + sgl.gen_int("days", 8) + "\n"

    ret = decode_int.run(temperature=0)
    assert int(ret["hours"]) == 24, ret.text()
    assert int(ret["days"]) == 365, ret.text()
    assert f"is {ret['days']}\n" in ret.text()
