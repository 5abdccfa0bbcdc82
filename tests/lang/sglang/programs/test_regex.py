"""Patterns: of any language, and as long as they need to be."""

from __future__ import annotations

import re

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")

ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"


def test_an_address():
    @sgl.function
    def regex_gen(s):
        s += "Q: What is the IP address of the Google DNS servers?\n"
        s += "A: " + sgl.gen("answer", temperature=0, regex=ADDRESS, max_tokens=12)

    assert re.fullmatch(ADDRESS, regex_gen.run()["answer"])


def test_a_dot_is_any_character():
    pattern = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def regex_gen(s):
        s += "The address of localhost is " + sgl.gen("answer", regex=pattern)

    assert re.fullmatch(pattern, regex_gen.run(temperature=0)["answer"])


def test_letters_of_other_scripts():
    pattern = r'\{"名字": "[一-龥]{1,4}", "年龄": [0-9]{1,3}\}'

    @sgl.function
    def character(s, name):
        s += name + " 是一个人物。\n" + sgl.gen("json_output", max_tokens=40, regex=pattern)

    assert re.fullmatch(pattern, character.run("小明", temperature=0)["json_output"])


def test_stop_regex():
    @sgl.function
    def count(s):
        s += "1, 2, 3, 4," + sgl.gen("rest", max_tokens=24, stop_regex=r"8|9")

    @sgl.function
    def several(s):
        s += "1, 2, 3, 4," + sgl.gen("rest", max_tokens=24, stop_regex=["[67]", "x"])

    for program, ended in ((count, "7, "), (several, "5, ")):
        state = program.run(temperature=0)
        assert state["rest"].endswith(ended)
        assert state.get_meta_info("rest")["finish_reason"]["type"] == "stop"
