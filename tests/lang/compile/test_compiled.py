"""Running compiled programs: as one runs the function, alone and in batches."""

import asyncio
from pathlib import Path

import pytest

import bough
from bough.lang.diagnostics.errors import BackendError
from bough.runtime.protocol.program import Gen, Text

from ..fakes import FakeBackend, value


@bough.function
def capital(s, country: str, style: str = "short"):
    s += f"{country}, {style}: " + bough.gen("answer", max_tokens=8)


def backend():
    return bough.MockBackend(lambda before, _: before.partition(",")[0].upper())


def test_arguments_can_be_given_in_their_order():
    program = capital.compile()
    one = backend()
    assert program.run("France", backend=one) == {"answer": "FRANCE"}
    assert program.run("France", style="long", backend=one) == program.run("France", "long", backend=one)
    first, second, third = one.requests
    assert first.ops[0] == Text(0, ("France, short: ",)) and second.ops == third.ops
    assert program.cost("France") == program.cost(country="France")
    assert [type(event).__name__ for event in program.stream("France", backend=one)][-1] == "Done"
    assert asyncio.run(program.arun("Japan", backend=one)) == {"answer": "JAPAN"}
    loaded = bough.CompiledProgram.from_json(program.to_json())
    assert loaded.run("France", backend=one) == {"answer": "FRANCE"}


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        (("a", "b", "c"), {}, r"capital takes 2 arguments \(country, style\), got 3"),
        (("a",), {"country": "b"}, "country was given twice"),
        ((), {}, "needs the argument 'country'"),
        (("a",), {"stile": "b"}, "no parameter 'stile'"),
        (("a",), {"temperature": 0}, r"temperature is a sampling option.*capital.compile\(temperature=...\)"),
        (("a",), {"trace": True}, r"has no timeline: use capital.run\(trace=True\)"),
        (("a",), {"stream": True}, r"the method stream\(\)"),
        (("a",), {"timeout_s": 0}, "timeout_s must be more than 0"),
        ((object(),), {}, "country is not a JSON value"),
        ((3,), {}, "country"),
    ],
)
def test_wrong_arguments_are_named(args, named, message):
    with pytest.raises(bough.RequestError, match=message):
        capital.compile().run(*args, backend=backend(), **named)


def test_a_parameter_may_have_the_name_of_an_option():
    @bough.function
    def own(s, temperature: float):
        s += f"{temperature}, " + bough.gen("a")

    assert own.compile().run(0.5, backend=backend()) == {"a": "0.5"}


def test_many_run_at_once():
    program = capital.compile()
    items = [{"country": "France"}, ("Japan", "long"), ["Peru"], {"country": 3}, {}]
    found = program.run_batch(items, backend=backend())
    assert found[:3] == [{"answer": "FRANCE"}, {"answer": "JAPAN"}, {"answer": "PERU"}]
    assert [type(item).__name__ for item in found[3:]] == ["RequestError", "RequestError"]
    assert asyncio.run(program.arun_batch(items[:2], backend=backend(), num_threads=1)) == found[:2]
    assert program.run_batch([], backend=backend()) == []
    shared = program.run_batch([{"country": "Peru"}], style="odd", backend=(one := backend()))
    assert shared == [{"answer": "PERU"}] and one.requests[0].ops[0] == Text(0, ("Peru, odd: ",))


def test_a_batch_is_checked_before_it_runs():
    two = bough.function(lambda s, one, other: s.__iadd__(f"{one}{other}" + bough.gen("answer")))
    with pytest.raises(bough.ProgramError, match="each item of a batch"):
        two.compile().run_batch(["France"], backend=backend())
    assert capital.compile().run_batch(["Peru"], backend=backend()) == [{"answer": "PERU"}]
    with pytest.raises(bough.ProgramError, match="num_threads must be"):
        capital.compile().run_batch([("France",)], backend=backend(), num_threads=0)


def test_so_many_run_at_once():
    running = most = 0

    class Slow(bough.MockBackend):
        async def arun(self, program, tools=None):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            async for event in super().arun(program, tools or {}):
                yield event

    found = capital.compile().run_batch([(str(number),) for number in range(9)], backend=Slow(), num_threads=3)
    assert len(found) == 9 and most == 3


@pytest.mark.parametrize("wrong", ["unread", "France", 3, {"country": "France"}, ["France"]])
def test_what_is_no_list_of_optimisations(wrong):
    with pytest.raises(bough.RequestError, match=r"Arguments are given by name: capital.compile\(country=...\)"):
        capital.compile(wrong)


def test_optimisations_by_name():
    assert capital.compile(["unread"]).template == capital.compile(("unread",)).template


def test_a_body_that_generates_nothing_that_is_read_stays_whole():
    @bough.function
    def constant(s):
        s += "An example."

    @bough.function
    def unread(s, word: str):
        s += "Say " + bough.gen("a")
        return {"word": word, "one": 1}

    @bough.function
    def nothing(s):
        pass

    one = backend()
    assert constant.compile().template.ops == (Text(0, ("An example.",)),)
    assert str(constant.compile()).splitlines() == ["program constant()", '    0 | "An example."', "result {}"]
    assert constant.compile().run(backend=one) == {} and nothing.compile().run(backend=one) == {}
    assert asyncio.run(constant.compile().arun(backend=one)) == {}
    assert one.requests == []
    assert any(isinstance(op, Gen) for op in unread.compile().template.ops)
    assert unread.compile().run("x", backend=one) == {"word": "x", "one": 1}
    assert constant.compile().cost().calls == 0 and "2 instructions" in repr(unread.compile())


def test_a_text_of_another_type_is_an_error():
    @bough.function
    def number(s):
        s += bough.gen("n", int, regex="[a-z]+")

    compiled = number.compile()
    for program in (compiled, bough.CompiledProgram.from_json(compiled.to_json())):
        with pytest.raises(bough.BoughError, match="'n' is") as caught:
            program.run(backend=bough.MockBackend({"n": "none"}))
        assert caught.value.code == "invalid_output"


def test_a_branch_that_fails_alone():
    @bough.function
    def branched(s):
        forks = s.fork(2, isolated=True)
        for fork, kind in zip(forks, (int, str), strict=True):
            fork += bough.gen("n", kind)
        forks.join()

    compiled = branched.compile()
    found = compiled.run(backend=bough.MockBackend({"n": ["1", '"x"']}))
    assert found == {"n": [1, "x"]}


# The user's line in errors


class Played(FakeBackend):
    """A backend of these events, or errors."""

    def __init__(self, *events):
        super().__init__(lambda _: iter(events))

    def run(self, program, tools=None):
        return super().run(program)


def _line(part: str) -> int:
    lines = enumerate(Path(__file__).read_text().splitlines(), start=1)
    return next(number for number, line in lines if part in line and "_line(" not in line)


def _failed(program, how):
    broken = bough.MockBackend(lambda *_: 1 / 0)
    if how == "run":
        return program.run("France", backend=broken)  # run
    if how == "arun":
        return asyncio.run(program.arun("France", backend=broken))  # arun
    if how == "run_batch":
        raise program.run_batch(["France"], backend=broken)[0]  # run_batch
    if how == "refused":
        return program.run("France", backend=Played(BackendError("no way")))  # refused
    if how == "argument":
        return program.run(stile="b", backend=broken)  # argument
    return program.run("France", backend=Played(value(0, "n", "many"), bough.Done()))  # value


@pytest.mark.parametrize("how", ["run", "arun", "run_batch", "refused", "argument", "value"])
def test_an_error_names_the_line_that_runs_the_program(how):
    @bough.function
    def counted(s, country: str):
        s += f"{country}: " + bough.gen("n", int)
        return s["n"]

    with pytest.raises(bough.BoughError) as caught:
        _failed((counted if how == "value" else capital).compile(), how)
    assert f"{__file__}:{_line(f'# {how}')}, in _failed" in str(caught.value)
    if how == "run":
        assert isinstance(caught.value, bough.ProgramError)
        assert "gen 'answer', branch 0" in str(caught.value) and caught.value.request_id is not None
