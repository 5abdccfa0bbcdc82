"""Compilations that hang, crash, eat memory or outlive their owner harm nobody else."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bough.constrain import GrammarCompiler, GrammarError, GrammarTooComplexError, JsonSchema, Regex, Vocabulary
from bough.constrain.errors import CompileLateError
from bough.constrain.lower import lower
from bough.constrain.vocabulary.adapters import byte_vocabulary
from bough.constrain.workers import service as service_module
from bough.constrain.workers.jobs import Check, Checked, Done, Lower, Refused
from bough.constrain.workers.process import LateError, ProcessEndedError, Processes, WorkerProcess
from bough.constrain.workers.service import CompileService, Turn

_DOUBLED = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i - 1}"}] * 2} for i in range(1, 40)}
HANG = Check(json.dumps({"$defs": {"a0": True, **_DOUBLED}, "$ref": "#/$defs/a39"}), "1")
"""2 ** 39 visits to one schema."""

_SOME = {name: _DOUBLED[name] for name in list(_DOUBLED)[:13]}
SLOW = json.dumps({"$defs": {"a0": True, **_SOME}, "$ref": "#/$defs/a13"})
"""2 ** 13 visits to one: some tenths of a second."""


def heavy(number: int = 0) -> JsonSchema:
    """A schema that is lowered in a process."""
    return JsonSchema(json.dumps({"anyOf": [{"type": "integer", "minimum": number}, {"type": "string"}]}))


def hang(service: CompileService) -> Future[Any]:
    future: Future[Any] = Future()
    service.submit(lambda turn: turn.do(HANG), future)
    return future


def burn(seconds: float) -> None:
    """Takes so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def exists(process_id: int) -> bool:
    """Tells whether the process is there, be it as a zombie."""
    return Path(f"/proc/{process_id}").exists()


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, timeout_s=2.0)
    yield compiler
    compiler.close()


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    process = WorkerProcess(memory_bytes=1 << 30, seconds=5.0)
    process.wait_until_ready()
    yield process
    process.close(kill=True)


def do(process: WorkerProcess, job: Any, *, seconds: float = 10.0, crowded: bool = False) -> Any:
    deadline = time.monotonic() + seconds
    return process.do(job, crowded=lambda: crowded, given_up=lambda: time.monotonic() >= deadline)


# The process


def test_a_process_lowers_as_this_one_does(process: WorkerProcess) -> None:
    assert do(process, Lower(heavy())) == Done(lower(heavy()))
    assert do(process, Lower(Regex("[a-z]+"))) == Done(lower(Regex("[a-z]+")))


@pytest.mark.parametrize(
    "spec", [JsonSchema("{"), JsonSchema('{"type": "strnig"}'), JsonSchema('{"minLength": 99999999}'), Regex("")]
)
def test_a_refusal_comes_back_as_it_was(process: WorkerProcess, spec: Any) -> None:
    with pytest.raises(GrammarError) as here:
        lower(spec)
    answer = do(process, Lower(spec))
    assert isinstance(answer, Refused)
    error = answer.error()
    assert type(error) is type(here.value)
    assert (str(error), error.path, error.reason) == (str(here.value), here.value.path, here.value.reason)
    assert getattr(error, "keyword", None) == getattr(here.value, "keyword", None)


def test_a_crowded_process_is_interrupted_and_goes_on(process: WorkerProcess) -> None:
    assert type(do(process, HANG, crowded=True)).__name__ == "Interrupted"
    assert process.alive
    assert do(process, Check("true", "1")) == Checked([])


def test_a_process_is_kept_however_large_the_one_that_started_it_is() -> None:
    """A process that has loaded a model is as large."""
    ballast = b"x" * (600 << 20)
    process = WorkerProcess(memory_bytes=1 << 30, seconds=5.0)
    process.wait_until_ready()
    for _ in range(3):
        assert do(process, Check("true", "1")) == Checked([])
    process.close()
    assert len(ballast) == 600 << 20


def test_a_late_job_is_killed(process: WorkerProcess) -> None:
    with pytest.raises(LateError):
        do(process, HANG, seconds=0.2)
    assert not exists(process.process_id)


def test_native_code_that_cannot_be_interrupted_is_killed(process: WorkerProcess) -> None:
    os.kill(process.process_id, signal.SIGSTOP)
    assert type(do(process, HANG, crowded=True)).__name__ == "Interrupted"
    assert not exists(process.process_id)


@pytest.mark.parametrize("num_bytes", [1000, 300_000])
def test_a_stopped_process_holds_nobody_up(process: WorkerProcess, num_bytes: int) -> None:
    """Also with a job of more than a pipe holds, which it does not read."""
    os.kill(process.process_id, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LateError):
        do(process, Lower(Regex("a" * num_bytes)), seconds=0.5)
    assert time.monotonic() - began < 5.0
    assert not exists(process.process_id)


def test_a_job_of_more_than_a_pipe_holds_comes_whole(process: WorkerProcess) -> None:
    spec = JsonSchema(json.dumps({"type": "string", "description": "x" * 300_000}))
    assert do(process, Lower(spec)) == Done(lower(spec))


def test_a_process_that_dies_over_a_job_is_told_from_one_that_answers(process: WorkerProcess) -> None:
    timer = threading.Timer(0.1, os.kill, (process.process_id, signal.SIGKILL))
    timer.start()
    with pytest.raises(ProcessEndedError, match="-9"):
        do(process, HANG)
    timer.join()
    assert not exists(process.process_id)


class Unkillable:
    """A process that waits within the system, which cannot end it."""

    pid, returncode = 10_000_000, None

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> None:
        assert timeout is not None, "it never ends"
        raise subprocess.TimeoutExpired("worker", timeout)


def test_a_process_that_cannot_be_killed_is_left_behind(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes, real = Processes(1, 5.0), process._process
    monkeypatch.setattr(process, "_process", Unkillable())
    with pytest.raises(LateError):
        do(process, HANG, seconds=0.1)
    processes.give_back(process)
    real.kill()
    real.wait(10.0)
    assert processes.idle_ids() == []
    assert [record.getMessage() for record in caplog.records] == [
        "process 10000000 was killed and does not end: it is left behind"
    ]


def test_a_job_that_takes_too_much_memory_is_refused() -> None:
    process = WorkerProcess(memory_bytes=300 << 20, seconds=5.0)
    process.wait_until_ready()
    answer = do(process, Check("true", "[" + "{}," * 4_000_000 + "{}]"))
    process.close()
    assert isinstance(answer, Refused)
    assert "300 MiB" in answer.reason
    assert isinstance(answer.error(), GrammarTooComplexError)


def test_a_process_does_not_outlive_who_started_it() -> None:
    script = (
        "import os\n"
        "from bough.constrain.workers.jobs import Check, frame\n"
        "from bough.constrain.workers.process import WorkerProcess\n"
        "process = WorkerProcess(memory_bytes=1 << 30, seconds=0.1)\n"
        "process.wait_until_ready()\n"
        f"process._stdin.write(frame(Check({HANG.schema!r}, '1')))\n"
        "print(process.process_id, flush=True)\n"
        "os._exit(0)\n"
    )
    output = subprocess.run([sys.executable, "-P", "-c", script], check=True, stdout=subprocess.PIPE, timeout=30).stdout
    deadline = time.monotonic() + 20
    while exists(int(output)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not exists(int(output))


# The service


def test_what_is_light_starts_no_process(compiler: GrammarCompiler) -> None:
    compiler.compile(JsonSchema('{"type": "object", "properties": {"a": {"enum": [1, 2]}}}'))
    compiler.compile(Regex("[a-z]+"))
    assert compiler.process_ids == []
    compiler.compile(heavy())
    assert len(compiler.process_ids) == 1


def test_many_that_hang_end_in_time_and_hold_nobody_up(compiler: GrammarCompiler) -> None:
    compiler.compile(heavy())
    started = time.monotonic()
    hanging = [hang(compiler._service) for _ in range(12)]
    behind = [compiler.submit(heavy(number + 1)) for number in range(12)]
    for future in behind:
        assert future.result(timeout=10)
    assert not all(future.done() for future in hanging)
    for future in hanging:
        with pytest.raises((GrammarTooComplexError, CompileLateError), match=r"2 s|busy"):
            future.result(timeout=10)
    assert time.monotonic() - started < 15.0
    assert compiler.compile(heavy(100))


def test_a_task_of_many_parts_has_one_share_of_time(compiler: GrammarCompiler) -> None:
    compiler.compile(heavy())
    done: list[int] = []

    def many(turn: Turn) -> None:
        for number in range(1000):
            turn.do(Check("true", "1"))
            burn(0.02)  # what is done here between the parts
            done.append(number)

    future: Future[Any] = Future()
    started = time.monotonic()
    compiler._service.submit(many, future)
    with pytest.raises(GrammarTooComplexError, match="2 s of processor time"):
        future.result(timeout=10)
    assert time.monotonic() - started < 5.0
    assert len(done) > 10


def test_the_start_of_a_process_is_not_the_fault_of_its_task(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary, timeout_s=0.2)
    take = compiler._service.processes.take

    def take_slowly() -> WorkerProcess:
        time.sleep(1.0)
        return take()

    monkeypatch.setattr(compiler._service.processes, "take", take_slowly)
    assert compiler.compile(heavy())
    compiler.close()


def test_a_machine_that_is_busy_is_no_fault_of_a_task(vocabulary: Vocabulary) -> None:
    """The task waits and computes little, as where others take the processor."""
    compiler = GrammarCompiler(vocabulary, num_threads=1, timeout_s=0.3)
    service = compiler._service

    def starved(turn: Turn) -> str:
        for _ in range(20):
            time.sleep(0.05)
            burn(0.005)
        return "done"

    futures: list[Future[str]] = [Future() for _ in range(3)]
    for future in futures:
        service.submit(starved, future)
    assert [future.result(timeout=10) for future in futures] == ["done"] * 3
    compiler.close()


def test_a_process_that_gets_no_processor_is_no_fault_of_its_task(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, timeout_s=0.3)
    compiler.compile(heavy())
    (process_id,) = compiler.process_ids
    os.kill(process_id, signal.SIGSTOP)
    future = compiler.submit(heavy(1))
    with pytest.raises(TimeoutError):
        future.result(timeout=1.0)
    os.kill(process_id, signal.SIGCONT)
    assert future.result(timeout=10)
    compiler.close()


def test_what_others_delay_for_long_is_late_and_tried_again(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary, timeout_s=2.0)
    compiler.compile(heavy())
    (process_id,) = compiler.process_ids
    monkeypatch.setattr(service_module, "PATIENCE_S", 0.5)
    os.kill(process_id, signal.SIGSTOP)
    with pytest.raises(CompileLateError, match="busy"):
        compiler.submit(heavy(1)).result(timeout=5)
    monkeypatch.setattr(service_module, "PATIENCE_S", 60.0)
    assert compiler.compile(heavy(1))
    compiler.close()


def test_native_code_that_panics_fails_its_own_task(compiler: GrammarCompiler) -> None:
    class Panic(BaseException):
        """Exception that native code raises when it panics."""

    def panic(turn: Turn) -> None:
        raise Panic("at src/lib.rs")

    for _ in range(4):
        future: Future[Any] = Future()
        compiler._service.submit(panic, future)
        with pytest.raises(RuntimeError, match=r"src/lib\.rs"):
            future.result(timeout=1.0)
    assert compiler.compile(heavy())


def wait_for_end_of_threads(before: set[threading.Thread]) -> None:
    """Those that wait for the end of a process end a moment after it."""
    deadline = time.monotonic() + 5
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline, set(threading.enumerate()) - before
        time.sleep(0.01)


def test_close_leaves_nothing_behind(vocabulary: Vocabulary) -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(heavy())
    hanging = [hang(compiler._service) for _ in range(3)]
    deadline = time.monotonic() + 4
    while len(processes := compiler.process_ids) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(processes) == 2
    compiler.close()
    for future in hanging:
        with pytest.raises(GrammarError, match="closed"):
            future.result(timeout=5)
    assert not any(exists(process_id) for process_id in processes)
    wait_for_end_of_threads(threads)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_compiler_that_nobody_has_any_more_leaves_nothing_behind(vocabulary: Vocabulary) -> None:
    threads = set(threading.enumerate())
    compiler: GrammarCompiler | None = GrammarCompiler(vocabulary)
    assert compiler is not None
    compiler.compile(heavy())
    processes = compiler.process_ids
    compiler = None
    gc.collect()
    assert processes
    assert not any(exists(process_id) for process_id in processes)
    wait_for_end_of_threads(threads)


def test_a_process_that_died_while_idle_is_replaced(compiler: GrammarCompiler) -> None:
    compiler.compile(heavy())
    (first,) = compiler.process_ids
    os.kill(first, signal.SIGKILL)
    assert compiler.compile(heavy(1))
    assert not exists(first)
    assert first not in compiler.process_ids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV])
def test_a_process_that_is_killed_from_outside_refuses_no_constraint_for_good(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The system does so where memory is short; its own limits and faults end it by other signals."""
    killed: list[int] = []

    def die(process: WorkerProcess, job: Any, **callbacks: Any) -> Any:
        killed.append(process.process_id)
        os.kill(process.process_id, number)
        return do_job(process, job, **callbacks)

    do_job = WorkerProcess.do
    outside = number == signal.SIGKILL
    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "do", die)
        for _ in range(2):
            with pytest.raises(CompileLateError if outside else GrammarTooComplexError):
                compiler.compile(heavy())
    assert len(killed) == (4 if outside else 2), "a refusal is remembered"
    if outside:
        assert compiler.compile(heavy())


def test_without_processes_all_is_done_here(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    grammar = compiler.compile(heavy())
    assert grammar.receipt is not None
    assert compiler.process_ids == []
    found = compiler.check(JsonSchema('{"items": {"type": "string"}}'), "[1]", None).result()
    assert [finding.violation.pointer for finding in found] == ["/0"]


def test_the_interpreter_ends_cleanly_while_something_hangs() -> None:
    script = (
        "import time\n"
        "from concurrent.futures import Future\n"
        "from bough.constrain import GrammarCompiler\n"
        "from bough.constrain.vocabulary.adapters import byte_vocabulary\n"
        "from bough.constrain.workers.jobs import Check\n"
        "compiler = GrammarCompiler(byte_vocabulary())\n"
        f"hang = Check({HANG.schema!r}, '1')\n"
        "compiler._service.submit(lambda turn: turn.do(hang), Future())\n"
        "while not compiler.process_ids: time.sleep(0.01)\n"
        "print(*compiler.process_ids)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, timeout=30, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()
    assert not any(exists(int(process_id)) for process_id in done.stdout.split())


def test_a_check_goes_before_what_waits(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, timeout_s=5.0)
    for future in [compiler.submit(heavy(number)) for number in range(20)]:
        future.result()
    hanging = [hang(compiler._service) for _ in range(6)]
    started = time.monotonic()
    assert compiler.check(JsonSchema('{"type": "integer"}'), "1", None).result(timeout=5) == []
    assert time.monotonic() - started < 3.0
    assert not any(future.done() for future in hanging)
    compiler.close()


def test_text_that_is_not_unicode_fails_alone(compiler: GrammarCompiler) -> None:
    with pytest.raises((ValueError, TypeError)):
        compiler.submit(JsonSchema('{"anyOf": [{"const": "\ud800"}]}'))
    assert compiler.compile(heavy())


def test_bytes_are_a_vocabulary() -> None:
    vocabulary = byte_vocabulary()
    assert vocabulary.encode("é") == [0xC3, 0xA9]
    assert vocabulary.tokens[256] is None


# Tenants


def test_many_compilations_of_one_tenant_hold_up_another_no_longer_than_one() -> None:
    service = CompileService(num_threads=1, timeout_s=5.0)
    order: list[str] = []

    def work(name: str) -> Future[None]:
        future: Future[None] = Future()

        def run(_: Turn) -> None:
            burn(0.01)
            order.append(name)

        service.submit(run, future, tenant=name[0])
        return future

    flood = [work(f"a{number}") for number in range(100)]
    quiet = [work(f"b{number}") for number in range(3)]
    urgent: Future[None] = Future()
    service.submit(lambda _: order.append("check of a"), urgent, urgent=True, tenant="a")
    for future in [*flood, *quiet, urgent]:
        future.result(30.0)
    assert order.index("b2") < 12
    assert order.index("check of a") < 12
    assert not service._turns._shares
    service.close()


def test_a_tenant_does_not_wait_for_another_ones_turn_to_have_the_same_compiled() -> None:
    service = CompileService(num_threads=1, timeout_s=5.0)
    flood: list[Future[None]] = [Future() for _ in range(100)]
    for future in flood:
        service.submit(lambda _: burn(0.01), future, tenant="flood")
    service.join(flood[-1], "quiet")
    flood[-1].result(30.0)
    assert sum(future.done() for future in flood) < 50
    assert all(service.drop(future) for future in flood[60:-1])
    for future in flood[:60]:
        future.result(30.0)
    assert not service._turns._shares
    service.close()


def test_small_compilations_that_keep_coming_do_not_starve_one_that_takes_long() -> None:
    """A task that makes room begins anew: those of a tenant that has had more must not have it begin anew for ever."""
    service = CompileService(num_threads=1, timeout_s=30.0)
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            futures: list[Future[None]] = [Future() for _ in range(5)]
            for future in futures:
                service.submit(lambda _: burn(0.05), future, tenant="flood")
            for future in futures:
                future.result(30.0)

    thread = threading.Thread(target=flood)
    thread.start()
    future: Future[Any] = Future()

    def long(turn: Turn) -> str:
        turn.do(Check(SLOW, "1"))
        return "done"

    service.submit(long, future, tenant="quiet")
    try:
        assert future.result(60.0) == "done"
    finally:
        over.set()
        thread.join(30.0)
        service.close()


def test_a_task_of_many_parts_on_a_thread_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_EXTRA_THREADS", 0)
    service = CompileService(num_threads=1, timeout_s=30.0)
    begun, order = threading.Event(), []

    def long(turn: Turn) -> None:
        begun.set()
        order.append("begun")
        for _ in range(30):
            turn.yield_to_others()
            burn(0.01)
        order.append("long")

    futures: list[Future[None]] = [Future(), Future()]
    service.submit(long, futures[0], tenant="one")
    assert begun.wait(5.0)
    service.submit(lambda _: order.append("short"), futures[1], tenant="another")
    for future in futures:
        future.result(30.0)
    assert order == ["begun", "short", "begun", "long"]
    service.close()


def test_a_task_on_a_thread_that_has_failed_goes_on_no_longer_than_one_of_its_parts() -> None:
    service = CompileService(num_threads=1, timeout_s=0.2)
    ended: Future[int] = Future()

    def long(turn: Turn) -> None:
        parts = 0
        try:
            for _ in range(10_000):
                turn.yield_to_others()
                burn(0.01)
                parts += 1
        finally:
            ended.set_result(parts)

    future: Future[None] = Future()
    service.submit(long, future)
    with pytest.raises(GrammarTooComplexError, match="processor time"):
        future.result(30.0)
    assert ended.result(30.0) < 10_000
    service.close()


@pytest.mark.parametrize("name", ["grammar-watch", "grammar-compile"])
def test_threads_that_cannot_be_started_are_tried_again(
    name: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, begin = GrammarCompiler(vocabulary), threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        begin(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        future = compiler.submit(Regex("[a-z]+"))
        if name == "grammar-watch":
            with pytest.raises(CompileLateError):
                future.result(5.0)
            with pytest.raises(CompileLateError):
                compiler.warm().result(5.0)
        time.sleep(0.3)
    assert compiler.submit(Regex("[a-z]+")).result(5.0).matcher()
    assert compiler.submit(Regex("[0-9]+")).result(5.0).matcher()
    compiler.close()
