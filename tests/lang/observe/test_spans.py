"""OpenTelemetry spans of programs: names, attributes, parents, failures; and nothing of it when nobody observes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import bough
from bough.lang.backends.http import _body
from bough.lang.observe.otel import trace_headers
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import BranchFailed, Done, Failed, Program, Text
from bough.runtime.protocol.request import Timings, Usage

from ..fakes import FakeBackend, value


class Recorded:
    """A provider whose spans can be looked at by name, and a tracer of the user's own."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("own")

    def spans(self):
        return self.exporter.get_finished_spans()

    def __getitem__(self, name):
        (span,) = [span for span in self.spans() if span.name == name]
        return span

    def parents(self):
        names = {span.context.span_id: span.name for span in self.spans()}
        return {(span.name, names[span.parent.span_id] if span.parent else None) for span in self.spans()}


@pytest.fixture
def recorded():
    found = Recorded()
    with bough.observe(found.provider):
        yield found


@bough.function
def ask(s, question):
    s += bough.user(question)
    s += bough.assistant(bough.gen("answer", max_tokens=8, temperature=0.5, top_p=0.9, seed=7, stop=["\n"]))
    s += "Mood:" + bough.select("mood", ["good", "bad"]) + bough.gen("free", max_tokens=2)


def test_a_run_and_its_calls(recorded):
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, forced_tokens=1)
    timings = Timings(queue_s=0.1, prefill_s=0.2, decode_s=0.7)

    def script(program):
        yield value(0, "answer", "yes", finish_reason="length", usage=usage, timings=timings)
        yield value(0, "mood", "good", probabilities=(0.9, 0.1))
        yield value(0, "free", "x", turn=2)
        yield Done(usage=usage, requests=3)

    ask.run("Really?", backend=FakeBackend(script))
    span = recorded["chat"]
    assert span.kind == SpanKind.CLIENT
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "bough",
        "gen_ai.output.type": "text",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("\n",),
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "bough.forced_tokens": 1,
        "bough.queue_s": 0.1,
        "bough.value": "answer",
        "bough.branch": 0,
        "bough.turn": 0,
    }
    assert span.end_time - span.start_time == pytest.approx(1e9, rel=1e-6)
    assert recorded["select"].attributes["bough.choices"] == 2
    assert recorded["text_completion"].attributes["bough.turn"] == 2
    whole = recorded["invoke_workflow ask"]
    assert whole.attributes["gen_ai.workflow.name"] == "ask"
    assert whole.attributes["gen_ai.usage.input_tokens"] == 10
    assert whole.attributes["bough.requests"] == 3
    assert whole.status.status_code == StatusCode.UNSET
    assert {child for child, parent in recorded.parents() if parent == "invoke_workflow ask"} == {
        "chat",
        "select",
        "text_completion",
    }
    assert not any("messages" in name for span in recorded.spans() for name in span.attributes)


def run_plainly(function, backend):
    function.run("x", backend=backend)


def run_as_a_task(function, backend):
    asyncio.run(function.arun("x", backend=backend))


def run_in_a_batch(function, backend):
    function.run_batch([("x",)], backend=backend)


def run_on_a_thread(function, backend):
    function.run_batch([("x",)], backend=backend, num_threads=1)


def run_one_by_one(function, backend):
    list(function.run_batch([("x",)], backend=backend, generator_style=True))


def run_as_a_stream(function, backend):
    list(function.stream("x", backend=backend))


@pytest.mark.parametrize(
    "run", [run_plainly, run_as_a_task, run_in_a_batch, run_on_a_thread, run_one_by_one, run_as_a_stream]
)
def test_spans_are_below_those_around_them(recorded, run):
    @bough.tool
    def sync_tool(topic: str) -> str:
        with recorded.tracer.start_as_current_span("in sync_tool"):
            return topic

    @bough.tool
    async def async_tool(topic: str) -> str:
        with recorded.tracer.start_as_current_span("in async_tool"):
            await asyncio.sleep(0)
            return topic

    @bough.function
    def inner(s):
        s += "Say" + bough.select("word", ["a"])

    @bough.function
    def outer(s, question):
        s += question + bough.gen("answer")
        with recorded.tracer.start_as_current_span("in the body"):
            s["answer"]
            inner()["word"]
        s += bough.use("one", sync_tool, topic="x") + bough.use("two", async_tool, topic="x")

    with recorded.tracer.start_as_current_span("around"):
        run(outer, bough.MockBackend())
    assert recorded.parents() == {
        ("around", None),
        ("invoke_workflow outer", "around"),
        ("text_completion", "invoke_workflow outer"),
        ("in the body", "invoke_workflow outer"),
        ("invoke_workflow inner", "in the body"),
        ("select", "invoke_workflow inner"),
        ("execute_tool sync_tool", "invoke_workflow outer"),
        ("in sync_tool", "execute_tool sync_tool"),
        ("execute_tool async_tool", "invoke_workflow outer"),
        ("in async_tool", "execute_tool async_tool"),
    }


def test_failures(recorded):
    @bough.tool
    def broken(topic: str) -> str:
        raise KeyError(topic)

    @bough.function
    def failing(s):
        s += "x" + bough.use("found", broken, topic="x")

    with pytest.raises(bough.ProgramError):
        failing.run(backend=bough.MockBackend())
    assert recorded["execute_tool broken"].attributes["error.type"] == "KeyError"
    assert recorded["execute_tool broken"].status.status_code == StatusCode.ERROR
    assert recorded["invoke_workflow failing"].attributes["error.type"] == "tool_failed"
    assert recorded["invoke_workflow failing"].status.status_code == StatusCode.ERROR


def test_a_body_that_raises_and_a_branch_that_fails(recorded):
    @bough.function
    def raising(s):
        s += "x" + bough.gen("y")
        s["y"]
        raise ValueError("own")

    def script(program):
        yield BranchFailed(branch=3, error=ErrorInfo(code="cancelled", message="stopped"))
        yield value(0, "y", "y")
        yield Done()

    with pytest.raises(ValueError, match="own"):
        raising.run(backend=FakeBackend(script))
    span = recorded["invoke_workflow raising"]
    assert span.attributes["error.type"] == "ValueError"
    assert [event.name for event in span.events] == ["branch failed", "exception"]


def test_a_tool_of_the_server_is_known_by_its_value(recorded):
    @bough.function
    def remote(s):
        s += "x" + bough.use("found", "search", topic="x")

    def script(program):
        yield value(0, "found", "it")
        yield Done()

    remote.run(backend=FakeBackend(script))
    span = recorded["execute_tool search"]
    assert span.attributes["gen_ai.tool.name"] == "search" and span.attributes["bough.value"] == "found"


def test_texts_are_recorded_only_if_asked_for():
    found = Recorded()

    @bough.tool
    def look_up(topic: str) -> str:
        return "secret result"

    @bough.function
    def asking(s):
        s += "x" + bough.gen("answer") + bough.use("found", look_up, topic="secret topic")

    backend = bough.MockBackend({"answer": "secret answer"})
    with bough.observe(found.provider):
        asking.run(backend=backend)
    assert "secret" not in "".join(span.to_json() for span in found.spans())
    with bough.observe(found.provider, content=True):
        asking.run(backend=backend)
    spans = {span.name: span for span in found.spans()[-3:]}
    (message,) = json.loads(spans["text_completion"].attributes["gen_ai.output.messages"])
    assert message["parts"] == [{"type": "text", "content": "secret answer"}]
    assert "secret topic" in spans["execute_tool look_up"].attributes["gen_ai.tool.call.arguments"]


def test_the_current_span_is_named_to_the_server(recorded):
    program = Program(id="x", ops=(Text(0, ("x",)),))
    with recorded.tracer.start_as_current_span("around") as span:
        header = _body(program)["headers"]["traceparent"]
    assert f"{span.get_span_context().trace_id:032x}" in header


def test_nobody_observes_any_more():
    found = Recorded()
    with bough.observe(found.provider):
        pass
    ask.run("x", backend=bough.MockBackend())
    assert found.spans() == ()
    assert trace_headers() == {}


def test_nothing_is_imported_before_it_is_asked_for():
    script = (
        "import sys, bough\n"
        "@bough.function\ndef f(s):\n    s += 'x' + bough.gen('y')\n"
        "f.run(backend=bough.MockBackend())\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "bough.lang.observe.spans", raising=False)
    with pytest.raises(ImportError, match=r"bough\[otel\]"):
        bough.observe()


def test_compiled_programs(recorded):
    @bough.tool
    def look_up(topic: str) -> str:
        return topic

    @bough.function
    def small(s):
        s += "x" + bough.gen("a") + bough.use("b", look_up, topic="y")

    program = small.compile()
    with recorded.tracer.start_as_current_span("around"):
        program.run(backend=bough.MockBackend())
    assert recorded.parents() == {
        ("around", None),
        ("invoke_workflow small", "around"),
        ("text_completion", "invoke_workflow small"),
        ("execute_tool look_up", "invoke_workflow small"),
    }
    assert recorded["invoke_workflow small"].attributes["bough.requests"] == 1
    asyncio.run(program.arun(backend=bough.MockBackend()))
    assert len([span for span in recorded.spans() if span.name == "invoke_workflow small"]) == 2


def test_a_compiled_program_that_fails(recorded):
    @bough.function
    def small(s):
        s += "x" + bough.gen("a")

    def script(program):
        yield Failed(error=ErrorInfo(code="aborted", message="stopped"))

    with pytest.raises(bough.ProgramError):
        small.compile().run(backend=FakeBackendWithTools(script))
    assert recorded["invoke_workflow small"].attributes["error.type"] == "aborted"


class FakeBackendWithTools(FakeBackend):
    def run(self, program, tools=()):
        return super().run(program)
