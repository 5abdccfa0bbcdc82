"""Requests, listeners and checks of a clean engine, for the tests of the engine."""

from __future__ import annotations

from typing import Any

from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.request import Finish, Request, RequestOutput, TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams

from ..support.fakes import byte_tokenizer, fake_engine

ENDLESS = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class Heard:
    """Everything that was said of one request; nothing may be said after the end."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []

    def __call__(self, output: RequestOutput) -> None:
        assert not self.over, "an event after the terminal one"
        self.outputs.append(output)

    @property
    def over(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finish is not None

    @property
    def finish(self) -> Finish:
        finish = self.outputs[-1].finish
        assert finish is not None
        return finish

    @property
    def code(self) -> str | None:
        return None if self.finish.error is None else self.finish.error.code

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [entry for output in self.outputs for entry in output.logprobs or ()]


class Clock:
    """Time that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(name: str, text: str = "hello", sampling: SamplingParams = SHORT, **fields: Any) -> Request:
    return Request(id=name, prompt=tuple(byte_tokenizer().encode(text)), sampling=sampling, **fields)


def drive(engine: Engine, max_steps: int = 20000) -> None:
    for _ in range(max_steps):
        if not engine._live:
            return
        if engine.idle:
            engine.wait_for_grammar(5.0)
        engine.step()
    raise AssertionError("no progress")


def alone(**fields: Any) -> list[int]:
    engine, _ = fake_engine()
    heard = Heard()
    engine.submit(request("alone", **fields), heard)
    drive(engine)
    engine.close()
    return heard.tokens


def assert_clean(engine: Engine) -> None:
    """Nothing is left of anything, and a control request gets what it would get alone."""
    drive(engine)
    assert not engine._live
    assert not engine._admission.compiling
    heard = Heard()
    engine.submit(request("control", "control"), heard)
    drive(engine)
    assert heard.tokens == alone(text="control")
    assert engine.flush_cache()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.num_pages)
    engine.close()
