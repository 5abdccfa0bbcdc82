"""Reading: values, types, transcripts, gathered lists, what is known about a value."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Literal, TypedDict

import pytest

import bough
from bough import assistant, function, gen, gen_int, gen_string, select, system, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.program import Done
from bough.runtime.protocol.request import Timings, TokenLogprob, Usage

from ..fakes import FakeBackend, value


def run(body, answers=None, **options):
    return function(body).run(backend=MockBackend(answers), **options)


def test_values_have_the_type_asked_for():
    def body(s):
        s += gen("i", dtype=int) + gen_int("j") + gen("f", dtype=float) + gen("b", dtype=bool)
        s += gen_string("t") + gen("l", dtype=Literal["x", "y"]) + gen("plain")

    state = run(body, {"i": "42", "j": "-7", "f": "0.5", "b": "False", "t": '"say \\"hi\\""', "l": "y", "plain": "42"})
    values = [state[name] for name in ("i", "j", "f", "b", "t", "l", "plain")]
    assert values == [42, -7, 0.5, False, 'say "hi"', "y", "42"]
    assert [type(v) for v in values] == [int, int, float, bool, str, str, str]


def test_a_value_that_is_not_of_its_type_names_the_line():
    backend = FakeBackend(lambda p: iter([value(0, "n", "12a", finish_reason="length"), Done()]))
    state = function(lambda s: s.__iadd__(gen("n", dtype=int))).run(backend=backend)
    with pytest.raises(ProgramError, match=r"'12a'.*'length'") as caught:
        state["n"]
    assert caught.value.code == "invalid_output"
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_json_text_is_parsed_on_request():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    state = run(lambda s: s.__iadd__(gen("x", json_schema=schema)), {"x": '{"a": 1}'})
    assert state["x"] == '{"a": 1}'
    assert state.json("x") == {"a": 1}


def test_text_and_messages():
    def body(s):
        s += system("Be brief.")
        s += user("Q1") + assistant("A: " + gen("a"))
        s += user("Q2")
        with s.assistant():
            s += "B: " + s.ref("a") + gen("b")

    state = run(body, {"a": "one", "b": "two"})
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q1"},
        {"role": "assistant", "content": "A: one"},
        {"role": "user", "content": "Q2"},
        {"role": "assistant", "content": "B: onetwo"},
    ]
    assert state.text().endswith("<|assistant|>\nB: onetwo<|end|>\n")


def test_text_without_roles_is_known_without_the_backend():
    state = run(lambda s: s.__iadd__("a" + gen("x") + "b"))
    assert state.text() == "a(x)b"


def test_join_gathers_in_the_order_of_the_branches():
    seen = {}

    def body(s):
        s += gen("shared")
        s["kept"] = 1
        branches = s.fork(3)
        branches += lambda i: f"{i}" + gen("x")
        branches[1] += gen("only")
        branches[2]["shared"] = "changed"
        branches.join()
        seen.update({name: s[name] for name in ("x", "only", "shared", "kept")})

    run(body, {"x": ["a", "b", "c"], "only": "o"})
    assert seen == {
        "x": ["a", "b", "c"],
        "only": [None, "o", None],
        "shared": [None, None, "changed"],
        "kept": 1,
    }


def test_join_append_appends_the_text_of_the_branches():
    def body(s):
        s += "start;"
        branches = s.fork(2)
        branches += ["one" + gen("x"), "two" + gen("x")]
        branches.join("concate_and_append")
        s += ";end"

    state = run(body, {"x": ["A", "B"]})
    assert state.text() == "start;oneAtwoB;end"
    assert state["x"] == ["A", "B"]


def test_group_reads_and_checks():
    def body(s):
        branches = s.fork(2)
        assert len(branches) == 2
        branches += gen("x")
        branches[0] += "tail"
        assert branches["x"] == ["a", "b"]
        assert [branch["x"] for branch in branches] == ["a", "b"]
        with pytest.raises(ProgramError, match="3 expressions cannot be appended to 2 branches"):
            branches += ["1", "2", "3"]
        with pytest.raises(ProgramError, match='"gather" or "append"'):
            branches.join("merge")
        with pytest.raises(ProgramError, match="cannot be replaced"):
            branches[0] = branches[1]

    run(body, {"x": ["a", "b"]})


def test_join_append_needs_the_same_open_message():
    def body(s):
        branches = s.fork(1)
        with branches[0].user():
            branches.join("append")

    with pytest.raises(ProgramError, match="a message is open in only one of the two"):
        run(body)


def test_a_passage_becomes_a_variable():
    def body(s):
        with s.var_scope("both"):
            s += user("Q: " + gen("x"))
            s += "!"
        s += "<" + s.ref("both") + ">"

    state = run(body, {"x": "why"})
    assert state["both"] == "Q: why!"
    assert state.messages() == [{"role": "user", "content": "Q: why"}]
    assert state.text().endswith("!<Q: why!>")


def test_contains_knows_what_is_recorded():
    def body(s):
        assert "x" not in s
        s += gen("x")
        assert "x" in s

    run(body)


def test_an_unknown_variable_names_the_known_ones():
    state = run(lambda s: s.__iadd__(gen("x")))
    with pytest.raises(ProgramError, match=r"no variable 'y'.*'x'"):
        state["y"]


def test_several_samples_are_a_list():
    state = run(lambda s: s.__iadd__(gen("x", n=3, dtype=int) + "."), {"x": ["1", "2", "3"]})
    assert state["x"] == [1, 2, 3]
    assert state.text() == "1."


def test_probabilities_of_a_select():
    state = run(lambda s: s.__iadd__(select("x", ["a", "b", "c"]) + gen("y")), {"x": "b"})
    assert state["x"] == "b"
    assert state.probabilities("x") == {"a": 0.2, "b": 0.6, "c": 0.2}
    assert state.get_meta_info("x")["choices"] == ["a", "b", "c"]
    with pytest.raises(ProgramError, match="not chosen by a select"):
        state.probabilities("y")


def test_meta_info():
    event = value(
        0,
        "x",
        "hi",
        finish_reason="length",
        usage=Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=2),
        timings=Timings(queue_s=1.0, prefill_s=2.0, decode_s=3.0),
        logprobs=(TokenLogprob(5, -0.5, ((5, -0.5), (6, -2.0))),),
    )
    backend = FakeBackend(lambda p: iter([event, Done(usage=event.usage, requests=1)]))
    state = function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    info = state.get_meta_info("x")
    assert info["finish_reason"] == {"type": "length", "matched": None, "length": 2}
    assert (info["prompt_tokens"], info["cached_tokens"], info["e2e_latency"]) == (10, 8, 6.0)
    assert info["output_token_logprobs"] == [(-0.5, 5, None)]
    assert info["output_top_logprobs"] == [[(-0.5, 5, None), (-2.0, 6, None)]]
    assert state.usage.cached_tokens == 8


def test_timeline_needs_a_trace():
    def body(s):
        s += "Hello there, " + gen("x")
        s += s["x"] + select("y", ["a", "b"])

    with pytest.raises(ProgramError, match="trace=True"):
        run(body).timeline()
    timeline = run(body, trace=True).timeline()
    assert timeline.title == "body"
    assert sorted((piece.op, piece.kind) for piece in timeline.pieces) == [
        (0, "text"), (1, "gen"), (2, "text"), (3, "select"),
    ]  # fmt: skip
    assert list(timeline.probabilities) == [(0, "y")]


def test_usage_adds_up_over_submissions():
    def body(s):
        s += "a b" + gen("x")
        s += s["x"] + gen("y")

    assert run(body, {"x": "one two", "y": "three"}).usage.completion_tokens == 3


def test_get_gives_the_type_that_is_asked_for():
    @bough.function
    def asked(s):
        s += bough.gen("number") + bough.gen("typed", int) + bough.gen("word")
        s["own"] = 3

    state = asked.run(backend=bough.MockBackend({"number": "41", "typed": "7", "word": "x"}))
    assert state.get("number", int) + 1 == 42
    assert state.get("typed", int) == 7 and state.get("number") == "41" and state.get("word", str) == "x"
    assert state.get("own", int) == 3
    for text, expected in (("True", True), (" false", False), ("TRUE\n", True)):
        backend = bough.MockBackend({"number": text, "typed": "7", "word": "x"})
        assert asked.run(backend=backend).get("number", bool) is expected
    for name, kind in (("word", int), ("word", bool), ("typed", list[int]), ("own", str)):
        with pytest.raises(bough.ProgramError, match=f"'{name}' is no"):
            state.get(name, kind)


class Dated(TypedDict):
    day: datetime.date


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("2020-01-31", datetime.date, datetime.date(2020, 1, 31)),
        ('"2020-01-31"', datetime.date, datetime.date(2020, 1, 31)),
        (" 2020-01-31\n", datetime.date, datetime.date(2020, 1, 31)),
        ("2020-01-31T10:00:00", datetime.datetime, datetime.datetime(2020, 1, 31, 10)),
        ("12:30:00", datetime.time, datetime.time(12, 30)),
        ("12345678-1234-1234-1234-123456789abc", uuid.UUID, uuid.UUID("12345678-1234-1234-1234-123456789abc")),
        ("1.50", decimal.Decimal, decimal.Decimal("1.50")),
        ('{"a": 1}', dict, {"a": 1}),
        ({"a": 1}, dict, {"a": 1}),
        ({"a": 1}, dict[str, int], {"a": 1}),
        ({"day": "2020-01-31"}, Dated, {"day": datetime.date(2020, 1, 31)}),
        (5, float, 5.0),
        (["1", "2"], list[int], [1, 2]),
        (["1", "2"], list[str], ["1", "2"]),
    ],
)
def test_a_value_arrives_as_the_type_asked_for(value, kind, expected):
    def body(s):
        s += "x" + gen("read") if isinstance(value, str) else "x"
        if not isinstance(value, str):
            s["read"] = value

    found = run(body, {"read": value} if isinstance(value, str) else None).get("read", kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        ("2020-13-01", datetime.date, "is no date: Invalid RFC3339"),
        ("x", int, "is no int: invalid literal"),
        ({"a": 1}, int, "is no int: Expected `int`"),
        (5, str, "is no str: Expected `str`"),
        ("{bad", dict, "is no dict: JSON is malformed"),
    ],
)
def test_a_value_that_is_not_of_the_type_asked_for(value, kind, why):
    def body(s):
        s["own"] = value

    with pytest.raises(ProgramError, match=why) as caught:
        run(body).get("own", kind)
    assert caught.value.code == "invalid_output"
    assert caught.value.place is not None and caught.value.place.file == __file__
