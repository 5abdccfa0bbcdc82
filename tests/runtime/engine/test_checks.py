"""A finished value is checked before its end is told; meanwhile nobody waits."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from bough.constrain import GrammarError, Regex
from bough.constrain.errors import CompileLateError
from bough.constrain.receipt import Finding, Policy, Receipt, Violation
from bough.constrain.spec import GrammarSpec, JsonSchema, Structural, Tag
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.request import Finish, Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import fake_engine
from ..listening import Clock

SPEC = Regex("[a-c]{2}")


class Judge:
    """In place of the compiler's check: answers when it is told to."""

    def __init__(self, engine: Engine) -> None:
        self.asked: list[tuple[GrammarSpec, str, Future[list[Finding]]]] = []
        engine._checks._check = self

    def __call__(self, spec: GrammarSpec, text: str, receipt: Receipt | None, tenant: str) -> Future[list[Finding]]:
        future: Future[list[Finding]] = Future()
        self.asked.append((spec, text, future))
        return future


def start(
    engine: Engine, mode: str = "exact", request_id: str = "a", grammar: GrammarSpec = SPEC, **sampling: object
) -> list[RequestOutput]:
    """A request whose constraint has something to check."""
    heard: list[RequestOutput] = []
    params = SamplingParams(**{"max_tokens": 8, "seed": 3, **sampling})  # type: ignore[arg-type]
    engine.submit(Request(id=request_id, prompt=(65, 66), sampling=params, grammar=grammar), heard.append)
    engine.wait_for_grammar(10.0)
    engine._admit(0.0)
    engine._live[request_id].check.receipt = Receipt(mode=mode, checked=("/pattern",))  # type: ignore[arg-type]
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
    judge.asked[0][2].set_result(
        [Finding(Violation("/0/name", "is no hostname"), "exact"), Finding(Violation("", "is odd"), "exact")]
    )
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
    judge.asked[0][2].set_result([Finding(Violation("/x", "is odd"), "best_effort")])
    run(engine)
    finish = end(heard)
    assert finish.reason == "stop" and finish.error is None
    assert finish.constraint is not None and finish.constraint.violations == (Violation("/x", "is odd"),)
    engine.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GrammarError("too slow"), "constraint_violated"),
        (RuntimeError("broken"), "constraint_violated"),
        (CompileLateError("too slow"), "engine_overloaded"),
    ],
    ids=["refused", "failed", "late"],
)
def test_what_cannot_be_checked_is_not_let_through(error: Exception, code: str) -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine)
    run(engine)
    judge.asked[0][2].set_exception(error)
    run(engine)
    finish = end(heard)
    assert finish.reason == "error" and finish.error is not None and finish.error.code == code
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


def test_a_check_that_nobody_waits_for_is_given_up() -> None:
    engine, _ = fake_engine()
    judge, given_up = Judge(engine), list[Future[list[Finding]]]()
    engine._checks._abandon = given_up.append
    start(engine)
    run(engine)
    engine.abort("a")
    assert given_up == [judge.asked[0][2]]
    start(engine, request_id="b")
    run(engine)
    judge.asked[1][2].set_result([])
    run(engine)
    assert len(given_up) == 1
    engine.close()


def test_what_was_cut_is_not_checked() -> None:
    """At the limit, or at a stop string, there is no value to judge."""
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine, stop=("a", "b", "c"))
    run(engine)
    finish = end(heard)
    assert finish.reason == "stop" and not judge.asked
    assert finish.constraint == Receipt(mode="exact")  # nothing was checked, and nobody says so
    engine.close()


@pytest.mark.parametrize(
    ("grammar", "sampling"),
    [
        (SPEC, {"stop_token_ids": (97, 98, 99)}),
        (Regex("[a-c]{20}"), {}),
        (JsonSchema('{"type": "array", "items": {"enum": ["abc"]}, "minItems": 20}'), {}),
    ],
    ids=["a stop token", "no room", "closed so that it parses"],
)
def test_nor_is_what_a_token_or_the_budget_has_cut(grammar: GrammarSpec, sampling: dict[str, Any]) -> None:
    engine, _ = fake_engine()
    judge = Judge(engine)
    heard = start(engine, grammar=grammar, **sampling)
    run(engine)
    finish = end(heard)
    assert finish.reason in ("stop", "length") and finish.error is None and not judge.asked
    assert finish.constraint == Receipt(mode="exact")
    engine.close()


def test_a_whole_value_at_the_limit_is_checked() -> None:
    engine, _ = fake_engine()
    judge = Judge(engine)
    heard = start(engine, grammar=Regex("[a-c]{2,20}x?"), logit_bias={257: -100.0, ord("x"): -100.0})
    run(engine)
    ((_, text, future),) = judge.asked
    assert len(text) == 8
    future.set_result([])
    run(engine)
    finish = end(heard)
    assert finish.reason == "length" and finish.constraint == Receipt(mode="exact", checked=("/pattern",))
    engine.close()


NINE = JsonSchema('{"const": 9}', property_order="schema")


@pytest.mark.parametrize(
    ("grammar", "judged"),
    [
        (
            Structural((Tag("<|im_start|>", NINE, ""),), at_least_one=True, stop_after_first=True, free_text=False),
            "<|im_start|>9",
        ),
        (Structural(reasoning_end="<|im_start|>", then=NINE), "<|im_start|>9"),
    ],
    ids=["of a tag", "of reasoning"],
)
def test_marks_that_are_control_tokens_are_judged_though_not_returned(grammar: GrammarSpec, judged: str) -> None:
    engine, _ = fake_engine()
    judge = Judge(engine)
    heard = start(engine, grammar=grammar, logit_bias={256: 100.0})
    run(engine)
    ((_, text, future),) = judge.asked
    assert text.replace("\n", "") == judged and "".join(output.text for output in heard).strip() == "9"
    future.set_result([])
    run(engine)
    assert end(heard).reason == "stop"
    engine.close()


@pytest.mark.parametrize("policy", ["exact", "best_effort"])
def test_beside_a_best_effort_part_an_exact_one_stays_exact(policy: Policy) -> None:
    engine, _ = fake_engine()
    judge, heard = Judge(engine), start(engine, "best_effort")
    run(engine)
    judge.asked[0][2].set_result(
        [Finding(Violation("/x", "is odd"), "best_effort"), Finding(Violation("/y", "is even"), policy)]
    )
    run(engine)
    finish = end(heard)
    assert (finish.error is not None) == (policy == "exact")
    assert finish.error is None or "constraint: /y: is even; /x: is odd" in finish.error.message
    engine.close()


@pytest.mark.parametrize("policy", ["exact", "best_effort"])
def test_an_exact_part_that_cannot_be_checked_is_not_let_through(policy: Policy) -> None:
    engine, _ = fake_engine()
    tags = Tag("<", NINE, ""), Tag("[", JsonSchema("true", policy=policy), "")
    grammar = Structural(tags if policy == "exact" else tags[1:], stop_after_first=True, free_text=False)
    judge, heard = Judge(engine), start(engine, "best_effort", grammar=grammar, max_tokens=4)
    run(engine)
    judge.asked[0][2].set_exception(GrammarError("too slow"))
    run(engine)
    assert (end(heard).error is not None) == (policy == "exact")
    engine.close()


def test_an_engine_that_closes_ends_what_is_being_checked() -> None:
    engine, _ = fake_engine()
    Judge(engine)
    heard = start(engine)
    run(engine)
    engine.close()
    finish = end(heard)
    assert finish.reason == "error" and finish.error is not None and finish.error.code == "engine_dead"


def test_a_check_does_not_outlast_the_time_of_its_request() -> None:
    engine, _ = fake_engine()
    judge, clock = Judge(engine), Clock()
    engine._clock = clock
    heard: list[RequestOutput] = []
    params = SamplingParams(max_tokens=8, seed=3)
    engine.submit(Request(id="a", prompt=(65, 66), sampling=params, grammar=SPEC, timeout_s=5.0), heard.append)
    engine.wait_for_grammar(10.0)
    engine._admit(clock.now)
    engine._live["a"].check.receipt = Receipt(mode="exact", checked=("/pattern",))
    run(engine)
    assert engine.sleep_s() == 5.0
    clock.now += 5.0
    engine.step()
    finish = end(heard)
    assert finish.error is not None and finish.error.code == "generation_timeout"
    judge.asked[0][2].set_result([])
    engine.step()
    assert engine.idle and engine.sleep_s() is None and not engine._live
    engine.close()
