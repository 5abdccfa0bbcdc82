"""A finished value is checked before its end is told; meanwhile nobody waits."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bough.constrain import GrammarError, Regex
from bough.constrain.receipt import Receipt, Violation
from bough.constrain.spec import GrammarSpec
from bough.runtime.engine import Engine
from bough.runtime.request import Finish, Request, RequestOutput
from bough.runtime.sampling import SamplingParams

from ..fakes import fake_engine

SPEC = Regex("[a-c]{2}")


class Judge:
    """In place of the compiler's check: answers when it is told to."""

    def __init__(self, engine: Engine) -> None:
        self.asked: list[tuple[GrammarSpec, str, Future[list[Violation]]]] = []
        engine._checks._check = self

    def __call__(self, spec: GrammarSpec, text: str) -> Future[list[Violation]]:
        future: Future[list[Violation]] = Future()
        self.asked.append((spec, text, future))
        return future


def start(engine: Engine, mode: str = "exact", request_id: str = "a", **sampling: object) -> list[RequestOutput]:
    """A request whose constraint has something to check."""
    heard: list[RequestOutput] = []
    params = SamplingParams(max_tokens=8, seed=3, **sampling)  # type: ignore[arg-type]
    engine.submit(Request(id=request_id, prompt=(65, 66), sampling=params, grammar=SPEC), heard.append)
    engine.wait_for_grammar(10.0)
    engine._admit_compiled(0.0)
    engine._live[request_id].receipt = Receipt(mode=mode, checked=("/pattern",))  # type: ignore[arg-type]
    return heard


def run(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def end(heard: list[RequestOutput]) -> Finish:
    assert [output.finish is None for output in heard] == [True] * (len(heard) - 1) + [False]
    finish = heard[-1].finish
    assert finish is not None
    return finish


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_end_waits_for_the_check_and_nobody_else_does(ahead: int) -> None:
    engine, _ = fake_engine(ahead=ahead)
    judge, woken = Judge(engine), []
    engine.wake = lambda: woken.append(True)
    heard = start(engine)
    run(engine)
    ((spec, text, future),) = judge.asked
    assert spec == SPEC and text == "".join(output.text for output in heard) and len(text) == 2
    assert all(output.finish is None for output in heard)
    other: list[RequestOutput] = []
    engine.submit(Request(id="b", prompt=(70,), sampling=SamplingParams(max_tokens=3)), other.append)
    run(engine)
    assert other[-1].finish is not None and heard[-1].finish is None
    woken.clear()
    future.set_result([])
    assert woken and not engine.idle
    run(engine)
    finish = end(heard)
    assert finish.reason == "stop" and finish.error is None and finish.usage.completion_tokens >= 2
    assert finish.constraint == Receipt(mode="exact", checked=("/pattern",))
    assert engine.stats().finished_total == {"stop": 1, "length": 1} and not engine._live
    engine.close()


def test_a_violation_is_an_error_that_names_it() -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine)
    run(engine)
    judge.asked[0][2].set_result([Violation("/0/name", "is no hostname"), Violation("", "is odd")])
    run(engine)
    finish = end(heard)
    assert finish.reason == "error" and finish.error is not None and finish.error.code == "constraint_violated"
    assert "/0/name: is no hostname" in finish.error.message and "(the value): is odd" in finish.error.message
    assert finish.usage.completion_tokens >= 2
    engine.close()


def test_best_effort_tells_of_violations() -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine, "best_effort")
    run(engine)
    judge.asked[0][2].set_result([Violation("/x", "is odd")])
    run(engine)
    finish = end(heard)
    assert finish.reason == "stop" and finish.error is None
    assert finish.constraint is not None and finish.constraint.violations == (Violation("/x", "is odd"),)
    engine.close()


@pytest.mark.parametrize("error", [GrammarError("too slow"), RuntimeError("broken")], ids=["refused", "failed"])
def test_what_cannot_be_checked_is_not_let_through(error: Exception) -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine)
    run(engine)
    judge.asked[0][2].set_exception(error)
    run(engine)
    finish = end(heard)
    assert finish.reason == "error" and finish.error is not None and finish.error.code == "constraint_violated"
    assert ("too slow" in finish.error.message) == isinstance(error, GrammarError)
    engine.close()


def test_who_leaves_during_the_check_is_let_go() -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine)
    run(engine)
    engine.abort("a")
    assert end(heard).reason == "abort" and engine.idle and not engine._live
    judge.asked[0][2].set_result([])
    run(engine)
    assert end(heard).reason == "abort"
    engine.close()


def test_what_was_cut_is_not_checked() -> None:
    """At the limit, or at a stop string, there is no value to judge."""
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine, stop=("a", "b", "c"))
    run(engine)
    assert end(heard).reason == "stop" and not judge.asked
    engine.close()


def test_an_engine_that_closes_ends_what_is_being_checked() -> None:
    engine, _ = fake_engine()
    Judge(engine)
    heard = start(engine)
    run(engine)
    engine.close()
    finish = end(heard)
    assert finish.reason == "error" and finish.error is not None and finish.error.code == "engine_dead"
