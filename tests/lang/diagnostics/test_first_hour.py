"""Mistakes of the first hour: each message has the line that made it, and says what to write instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

import bough
from bough import MockBackend, function, gen, select

HERE = Path(__file__).name


def body(record: Callable[[Any], Any]) -> Callable[[], Any]:
    """A run of a program whose body is `record`."""
    return lambda: function(record).run(backend=MockBackend())


def add(s: Any, what: Any) -> Any:
    s += what
    return s


def appended(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same of a body that appends one thing."""
    return body(lambda s: add(s, make()))


def text_of(s: Any, text: Any) -> None:
    s += text


program: Any = function(text_of)


async def state_not_awaited() -> Any:
    running: Any = function(read_in_a_coroutine).arun(backend=MockBackend())
    return running["a"]


async def value_not_awaited(s: Any) -> Any:
    s += "x" + gen("a")
    return s.aget("a") + "y"


async def read_in_a_coroutine(s: Any) -> None:
    s += "x" + gen("a")
    s["a"]


@dataclass
class Item:
    name: str


@dataclass
class Other:
    size: int


class Plain:
    def __init__(self, name: str) -> None:
        self.name = name


@bough.tool
def look_up(city: str) -> str:
    return city


def attribute(name: str) -> Any:
    return getattr(ended(), name)


def ended() -> Any:
    return function(generates).run(backend=MockBackend())


def generates(s: Any) -> Any:
    s += "x" + gen("answer")
    return s


def attribute_of(thing: Any, name: str) -> Any:
    return getattr(thing, name)


def streamed(body: Callable[[Any], Any]) -> Any:
    return function(body).stream(backend=MockBackend())


def forks(s: Any) -> None:
    a, b = s.fork(2)
    a += "x" + gen("a")
    b += "y" + gen("b")


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # where to run
    "no backend": (lambda: program.run("x"), "pass backend=bough.LocalBackend()"),
    "a backend's name": (lambda: program.run("x", backend="smollm2"), "use backend=bough.LocalBackend('smollm2')"),
    "a backend's class": (
        lambda: program.run("x", backend=bough.MockBackend),
        "create an instance, backend=bough.MockBackend(",
    ),
    "a default's name": (lambda: bough.set_default_backend("m"), "bough.LocalBackend('m')"),  # type: ignore[arg-type]
    "a server without scheme": (
        lambda: bough.HttpBackend("127.0.0.1:9100"),
        "an address such as http://127.0.0.1:8000",
    ),
    "no such model": (lambda: bough.LocalBackend("llama3"), "give a path, or a Hub name, owner/model"),
    "no such folder": (lambda: bough.LocalBackend("/no/such/folder"), "give a path"),
    "layers on a GPU": (lambda: bough.LocalBackend(gpu_layers=3), "device='cuda'"),
    "a name from elsewhere": (lambda: bough.LocalBackend(n_ctx=4096), "that is max_model_len"),
    "a sampling option for an engine": (lambda: bough.LocalBackend(temperature=0), "given to run, bind or gen"),
    "an engine's option misspelt": (lambda: bough.LocalBackend(max_num_seq=3), "did you mean 'max_num_seqs'?"),
    "a fraction over 1": (lambda: bough.LocalBackend(memory_fraction=5), "must be above 0 and at most 1"),
    # how to call
    "an argument is missing": (lambda: program.run(backend=MockBackend()), "call it as text_of.run(text=...)"),
    "too many arguments": (lambda: program.run(1, 2, backend=MockBackend()), "call it as text_of.run(text=...)"),
    "a body without a state": (
        lambda: function(lambda x: None).run("hello", backend=MockBackend()),
        "its first parameter, 'x', is the state",
    ),
    "a body without parameters": (lambda: function(lambda: None), "needs a first parameter, for the state: def"),
    "an option misspelt": (
        lambda: program.run("x", temprature=0, backend=MockBackend()),
        "did you mean 'temperature'?",
    ),
    "stream where it is none": (
        lambda: program.run_batch(["x"], stream=True, backend=MockBackend()),
        "only run(stream=True) has it",
    ),
    "a model for a run": (
        lambda: program.run("x", model="m", backend=MockBackend()),
        "backend=bough.LocalBackend(model)",
    ),
    "retries of a run": (
        lambda: program.run("x", retries=3, backend=MockBackend()),
        "gen(name, Type, retries=...) asks again",
    ),
    **{
        f"{name} of a run": (
            partial(program.run, "x", **{name: []}, backend=MockBackend()),
            "f.after(state).run(...) continues a state",
        )
        for name in ("messages", "history")
    },
    **{
        f"{name} of a batch": (
            partial(program.run_batch, ["x"], **{name: True}, backend=MockBackend()),
            "keeps its error, state.error()",
        )
        for name in ("return_exceptions", "on_error")
    },
    "workers of a batch": (
        lambda: program.run_batch(["x"], max_workers=3, backend=MockBackend()),
        "run_batch(batch, num_threads=...)",
    ),
    "a state to continue": (
        lambda: program.run(ended(), "x", backend=MockBackend()),
        "to continue a state, text_of.after(state).run(...)",
    ),
    "a state in a message": (appended(lambda: bough.user(ended())), "continued with f.after(state).run(...)"),
    "messages to continue": (
        lambda: program.after([{"role": "user", "content": "x"}]),
        "write bough.Conversation(messages)",
    ),
    "a policy in a conversation": (
        lambda: bough.Conversation([], bough.KeepLast(turns=8)),  # type: ignore[arg-type]
        "write bough.KeepLast(turns=8).trim(state)",
    ),
    "a policy as messages": (
        lambda: bough.Conversation(bough.KeepLast(turns=8)),  # type: ignore[arg-type]
        "write bough.KeepLast(turns=8).trim(state)",
    ),
    "a policy beside a state": (
        lambda: program.after(ended(), bough.KeepLast(turns=8)),
        "write bough.KeepLast(turns=8).trim(state)",
    ),
    "a policy by name": (
        lambda: program.after(ended(), keep=bough.Summarise()),
        "write bough.Summarise(turns=2).trim(state)",
    ),
    "a policy for a run": (
        lambda: program.run("x", keep=bough.KeepLast(turns=8), backend=MockBackend()),
        "write bough.KeepLast(turns=8).trim(state)",
    ),
    "a policy as an argument": (
        lambda: program.run("x", bough.KeepLast(turns=8), backend=MockBackend()),
        "write bough.KeepLast(turns=8).trim(state)",
    ),
    "two pasts": (lambda: program.after(ended(), "x"), "arguments are for run(...)"),
    "a list to trim": (
        lambda: bough.KeepLast(turns=8).trim([]),  # type: ignore[arg-type]
        "conversation must be a state or a Conversation",
    ),
    "a text as messages": (lambda: bough.Conversation("x"), "messages must be a list"),  # type: ignore[arg-type]
    **{
        f"{name} of a batch": (
            partial(program.run_batch, ["x"], **{name: True}, backend=MockBackend()),
            "there is no option '" + name + "': run_batch(batch, progress_bar=True)",
        )
        for name in ("progress", "show_progress")
    },
    "workers": (
        lambda: program.run_batch(["x"], workers=3, backend=MockBackend()),
        "there is no option 'workers': run_batch(batch, num_threads=...)",
    ),
    # streams
    "a stream of a name misspelt": (lambda: list(streamed(generates).text("anwser")), "did you mean 'answer'?"),
    "a stream of branches": (lambda: list(streamed(forks).text()), "text('a')"),
    "a variable of a stream": (lambda: streamed(generates)["answer"], ".state['answer']"),
    # attributes
    "a program that is run async": (lambda: program.run_async("x"), "await f.arun(...)"),
    "a program for a batch": (lambda: program.batch(["x"]), "f.run_batch(items)"),
    "a method misspelt": (lambda: program.run_bach(["x"]), "did you mean 'run_batch'?"),
    "parts of a stream": (lambda: streamed(generates).partial("answer"), "stream(name, partial=True)"),
    "a conversation that grows": (lambda: attribute_of(bough.Conversation(), "append"), "it never changes"),
    "tokens of a conversation": (lambda: attribute_of(bough.Conversation(), "num_tokens"), "count_tokens()"),
    "a fork of the module": (lambda: attribute_of(bough, "fork"), "s.fork(2)"),
    "a name of the module misspelt": (lambda: attribute_of(bough, "asistant"), "did you mean 'assistant'?"),
    # generations that are not appended
    "printed": (lambda: print(gen("a")), "then read s['a']"),
    "made a text": (lambda: str(select("a", ["x", "y"])), "then read s['a']"),
    "in an f-string": (appended(lambda: f"x {gen('a')}"), 's += "..." + expression + "..."'),
    "never appended": (lambda: body(lambda s: gen("a"))()["a"], "nothing was appended to this state"),
    "made, not appended": (
        body(lambda s: (add(s, "x"), gen("a"), s["a"])),
        "no generation was appended, as with `s += bough.gen('a')`",
    ),
    "added, not appended": (body(lambda s: s + gen("a")), "appended to with s += ..."),
    "a branch that is added to": (body(lambda s: [one + gen("a") for one in s.fork(2)]), "appended to with s += ..."),
    # options
    "an option of gen misspelt": (appended(lambda: gen("a", max_token=3)), "did you mean 'max_tokens'?"),  # type: ignore
    "a check misspelt": (appended(lambda: gen("a", int, chek=bool)), "did you mean 'check'?"),  # type: ignore
    "tools misspelt": (appended(lambda: gen("a", tool=[])), "did you mean 'tools'?"),  # type: ignore
    "a list as a type": (appended(lambda: gen("a", [Item])), "write list[Item]"),
    "an instance as a type": (appended(lambda: gen("a", Item("x"))), "give the class, Item"),
    "a plain class": (appended(lambda: gen("a", Plain)), "make Plain a dataclass, with @dataclass"),
    "a plain class in a list": (appended(lambda: gen("a", list[Plain])), "make Plain a dataclass, with @dataclass"),
    "a union of dataclasses": (appended(lambda: gen("a", Item | Other)), "msgspec.Struct with tag=True"),
    "two names": (appended(lambda: gen("a", "b")), "type must be a type, such as int"),
    "a number as text": (appended(lambda: gen("a", temperature="0")), "temperature must be a number"),  # type: ignore
    "a temperature below 0": (appended(lambda: gen("a", temperature=-1)), "temperature must be at least 0"),
    "no tokens": (appended(lambda: gen("a", max_tokens=0)), "max_tokens must be at least 1"),
    "a pattern that ends early": (appended(lambda: gen("a", regex="[0-9")), "unclosed character class"),
    "a back-reference": (appended(lambda: gen("a", regex=r"(a)\1")), "backreferences are not supported"),
    "a kind that is none": (appended(lambda: gen("a", schema={"type": "strng"})), "type must be one of null, boolean"),
    "a schema elsewhere": (
        appended(lambda: gen("a", schema={"$ref": "https://x.test/a.json"})),
        "remote references are not fetched: put the target under $defs",
    ),
    "a schema without values": (
        appended(lambda: gen("a", schema={"type": "integer", "minimum": 5, "maximum": 3})),
        "no finite value satisfies",
    ),
    "two constraints": (appended(lambda: gen("a", int, choices=["1"])), "leave one of the two out"),  # type: ignore
    "nothing to choose": (appended(lambda: select("a", [])), "got none"),
    "numbers to choose": (appended(lambda: select("a", [1, 2])), "write '1'"),  # type: ignore[list-item]
    "a choice twice": (appended(lambda: select("a", ["x", "x"])), "is there twice"),
    "a tool without a name": (
        appended(lambda: bough.use(look_up, city="x")),  # type: ignore
        'bough.use("name", look_up, argument=...)',
    ),
    "a tool by name": (appended(lambda: bough.tool("search")), "bough.use(name, 'search', argument=...)"),  # type: ignore
    "tools by name, without a server": (
        body(lambda s: add(s, bough.call_tools("answer", ["lookup"]))),
        "pass the function itself; names are of tools on the server",
    ),
    "a name that is missing": (
        appended(lambda: select(["a", "b"])),  # type: ignore[arg-type]
        "select(\"name\", ['a', 'b'])",
    ),
    "a type of Python's that is no JSON": (appended(lambda: gen("a", complex)), "choose another type"),
    "a type of Python's in a list": (appended(lambda: gen("a", list[complex])), "choose another type"),
    "log-probabilities as text": (
        appended(lambda: gen("a", logprobs="1")),  # type: ignore[call-overload]
        "logprobs must be a whole number",
    ),
    "an option that is nothing": (appended(lambda: gen("a", zzzz=1)), "help(bough.gen) lists them"),  # type: ignore
    "parts misspelt": (lambda: ended().stream("answer", partials=True), "did you mean 'partial'?"),
    # what is appended
    "no text in a message": (appended(lambda: bough.user(None)), "got NoneType"),  # type: ignore[arg-type]
    "nothing": (appended(lambda: None), "without `s +=`"),
    "a number": (appended(lambda: 5), "write str(5)"),
    "a message as a dict": (appended(lambda: {"role": "user", "content": "x"}), "a message is bough.user(text)"),
    "a dict": (appended(lambda: {"a": 1}), "json.dumps(...)"),
    "a message in a message": (appended(lambda: bough.user(bough.assistant("x"))), "s += bough.user_end()"),
    "a message that is not ended": (
        body(lambda s: (add(s, bough.user_begin()), add(s, bough.assistant("x")))),
        "end that first, s += bough.user_end()",
    ),
    # what is read
    "a variable misspelt": (body(lambda s: generates(s)["anwser"]), "did you mean 'answer'?"),
    "a state is no list": (lambda: ended()[0], "what the body has returned is state.ret_value"),
    "a state is no series": (lambda: list(ended()), "s.text_iter() streams"),
    **{
        f"the result as {name}": (partial(attribute, name), "returned is state.ret_value")
        for name in ("items", "result", "value", "output", "return_value", "returned")
    },
    "a state that is saved": (lambda: ended().save("x.json"), "state.conversation().save(path)"),
    "a stream of all": (lambda: ended().stream(), "s.text_iter() streams all text"),
    "a variable as an attribute": (body(lambda s: generates(s).answer), "read the variable with s['answer']"),
    "a branch's variable": (
        body(lambda s: (add(s.fork(1)[0], "x" + gen("a")), s["a"])),
        "a forked branch has it, so join that first",
    ),
    "a state that was not awaited": (
        lambda: asyncio.run(state_not_awaited()),
        "write await read_in_a_coroutine.arun(...)",
    ),
    "a value that was not awaited": (
        lambda: asyncio.run(function(value_not_awaited).arun(backend=MockBackend())),
        "write await s.aget('a'), or in a plain function s['a']",
    ),
    "a read in a coroutine": (
        lambda: asyncio.run(function(read_in_a_coroutine).arun(backend=MockBackend())),
        "await s.aget(name)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_has_the_line_and_the_next_step(mistake: str) -> None:
    make, step = MISTAKES[mistake]
    with pytest.raises((bough.BoughError, TypeError, AttributeError)) as caught:
        make()
    said = str(caught.value)
    assert step in said
    if mistake not in SHOWN_WHOLE:
        assert_users_lines_only(caught.value)
    assert f"{HERE}:" in said, said
    assert f"{HERE}:0" not in said


SHOWN_WHOLE = {
    *("printed", "made a text"),
    *("a state that was not awaited", "a value that was not awaited", "a read in a coroutine"),
}
"""Mistakes with other frames between the user's: of Python's event loop, and of what makes texts of objects."""


def assert_users_lines_only(error: BaseException) -> None:
    files = {Path(frame.f_code.co_filename).parts for frame, _ in walk_tb(error.__traceback__)}
    assert all("tests" in parts for parts in files), files


@pytest.mark.parametrize("name", ["Chat", "Session", "load"])
def test_names_of_chats_lead_to_sessions(name: str) -> None:
    with pytest.raises(AttributeError, match=r"f\.after\(state\) continues a program, and bough\.Conversation"):
        getattr(bough, name)


def test_a_history_may_be_none() -> None:
    assert program.after(None).run("x", backend=MockBackend()).text() == "x"


@pytest.mark.parametrize(
    "name",
    ["check", "dtype", "max_turns", "regex", "retries", "schema", "timeout_s", "tool_choice", "tools", "type"],
)
def test_every_option_of_gen_is_found_by_nearly_its_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"did you mean '{name}'\?\n") as caught:
        gen("a", **{f"{name}x": 1})  # type: ignore[call-overload]
    assert len(str(caught.value).splitlines()[0]) < 80


@pytest.mark.parametrize(("given", "same"), [(True, 1), (False, None), (None, None), (3, 3)])
def test_logprobs_may_be_a_flag(given: Any, same: int | None) -> None:
    asked = gen("a", logprobs=given)
    assert asked.options.get("logprobs") == same


def odd(number: int) -> None:
    if number % 2:
        raise ValueError(f"odd: {number}")


def even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize(
    ("check", "said"),
    [(odd, "the check `odd` refuses 'n': odd: 1; its text is '1'"), (even, "the check `even` refuses 'n'; its text")],
)
def test_a_refusal_names_the_check(check: Any, said: str) -> None:
    def asks(s: Any) -> Any:
        s += "x" + gen("n", int, check=check)
        return s["n"]

    with pytest.raises(bough.ProgramError) as caught:
        function(asks).run(backend=MockBackend({"n": 1}))
    assert said in str(caught.value)


def test_of_what_a_body_does_wrong_itself_nothing_is_changed() -> None:
    def wrong(s: Any) -> None:
        s += "Age " + 5  # type: ignore[operator]

    with pytest.raises(TypeError) as caught:
        function(wrong).run(backend=MockBackend())
    assert str(caught.value) == 'can only concatenate str (not "int") to str'


def test_the_message_of_an_error_stays_without_the_line() -> None:
    with pytest.raises(bough.RequestError) as caught:
        gen("a", temperature=-1)
    assert caught.value.message == "temperature must be at least 0, got -1"


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        bough.ProgramError, match=r"at http://127\.0\.0\.1:9 cannot be reached \(.*\): start it with `bough serve`"
    ):
        function(generates).run(backend=bough.HttpBackend("http://127.0.0.1:9"))
