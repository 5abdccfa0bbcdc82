"""The engine process: equal to the one on a thread, noticed when it dies, gone when its parent is."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import Choice, Lark
from bough.runtime.client.local import LocalClient
from bough.runtime.client.messages import FrameWriter, Submit
from bough.runtime.client.remote import RemoteClient
from bough.runtime.client.spawn import spawn_engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import EngineStoppedError, ModelError, RequestError
from bough.runtime.protocol.program import Done, Failed, Gen, Text
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ..asking import assert_stopped, config, program, request, tokens, wait_until


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RemoteClient]:
    client = RemoteClient.launch(config(folder))
    yield client
    client.close()


def test_both_clients_generate_the_same(folder: Path, running: RemoteClient) -> None:
    local = LocalClient.load(config(folder))
    for prompt in ("hello", "a longer prompt, in order to be sure"):
        one = list(local.stream(request(24, prompt)))
        two = list(running.stream(request(24, prompt)))
        assert tokens(one) == tokens(two)
        assert [output.text for output in one] == [output.text for output in two]
    assert local.info == running.info
    assert running.tokenizer.encode("héllo") == local.tokenizer.encode("héllo")
    ops = (Text(0, ("x",)), Gen(0, "g", SamplingParams(max_tokens=9, seed=4)))
    texts = [list(client.run(program(*ops)))[-1].texts for client in (local, running)]  # type: ignore[union-attr]
    assert texts[0] == texts[1]
    local.close()


def test_a_large_constraint_is_sent_once(running: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 prompts of one body with a schema of 1 MB were 64 frames of 1 MB."""
    sent: list[msgspec.Struct] = []

    def put(message: msgspec.Struct) -> None:
        sent.append(message)
        FrameWriter.put(running._writer, message)

    monkeypatch.setattr(running._writer, "put", put)
    large, other, small = Choice(("yes", "y" * 6000)), Choice(("ja", "j" * 6000)), Choice(("yes", "no"))
    for grammar in (large, large, small, large, other, large):
        asked = msgspec.structs.replace(request(400, "hello"), grammar=grammar)
        text = "".join(output.text for output in running.stream(asked))
        assert any(option.startswith(text) for option in grammar.options), text[:20]
        assert text
    assert [type(message).__name__ for message in sent] == [
        *("Constrain", "Submit", "Submit", "Submit", "Submit", "Constrain", "Submit", "Constrain", "Submit")
    ]
    assert max(len(msgspec.msgpack.encode(message)) for message in sent if isinstance(message, Submit)) < 1000


def test_a_constraint_that_is_too_large_is_not_sent(running: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running._writer, "put", None)
    with pytest.raises(RequestError, match="at most 1000000 are allowed") as caught:
        next(running.stream(msgspec.structs.replace(request(), grammar=Lark("x" * 1_000_001))))
    assert (caught.value.code, caught.value.param) == ("grammar_too_complex", "grammar")


def test_a_killed_process_is_noticed_at_once(folder: Path) -> None:
    loading: list[str] = []
    client = RemoteClient.launch(config(folder), lambda what, done, total: loading.append(what))
    assert client.alive
    assert loading
    stream = client.stream(request(480))
    events = client.run(program(Text(0, ("x",)), Gen(0, "g", request(480).sampling)))
    next(stream), next(events)
    os.kill(client.process_id, signal.SIGKILL)
    started = time.monotonic()
    last, failed = list(stream)[-1], list(events)[-1]
    assert time.monotonic() - started < 2.0
    assert last.finish is not None
    # Both may have come to their ends before the signal did: then there is nothing to be told.
    if last.finish.reason == "error":
        assert last.finish.error is not None
        assert last.finish.error.code == "engine_dead"
    assert isinstance(failed, (Failed, Done))
    wait_until(lambda: not client.alive, 2.0)
    assert_stopped(client)
    client.close()
    client.close()


def test_a_stopped_process_that_is_killed_fails_what_runs(folder: Path) -> None:
    """Stopped first, so that it certainly is in the middle of it; questions that wait are answered as well."""
    client = RemoteClient.launch(config(folder))
    os.kill(client.process_id, signal.SIGSTOP)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Future[Any]] = [
            pool.submit(lambda: list(client.stream(request(400)))),
            pool.submit(lambda: list(client.run(program()))),
            pool.submit(client.stats),
        ]
        time.sleep(0.2)
        os.kill(client.process_id, signal.SIGKILL)
        for future in waiting:
            with pytest.raises(EngineStoppedError):  # nothing had come before, so it is a refusal
                future.result(timeout=2.0)
    client.close()


def test_close_ends_the_process_and_what_runs_in_it(folder: Path) -> None:
    client = RemoteClient.launch(config(folder))
    stream = client.stream(request(480))
    next(stream)
    client.close()
    assert client._spawned.process.returncode is not None
    last = list(stream)[-1]
    assert last.finish is not None
    assert not client.alive
    client.close()
    assert_stopped(client)


def test_close_does_not_wait_for_a_process_that_is_stuck(folder: Path) -> None:
    client = RemoteClient.launch(config(folder))
    os.kill(client.process_id, signal.SIGSTOP)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 6.0
    assert client._spawned.process.returncode == -signal.SIGKILL


def test_the_process_ends_with_its_parent(folder: Path) -> None:
    """However the parent ends: here it is killed."""
    script = (
        "import sys; from bough.runtime.client.remote import RemoteClient\n"
        "from bough.runtime.protocol.config import EngineConfig\n"
        "client = RemoteClient.launch(EngineConfig(model=sys.argv[1], num_pages=512))\n"
        "print(client.process_id, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-P", "-c", script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()

    def gone() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"  # nobody is left to wait for it

    wait_until(gone)


def test_a_model_that_cannot_be_loaded_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        RemoteClient.launch(EngineConfig(model=str(tmp_path / "no-such-model")))
    with pytest.raises(ModelError, match="max_model_len is 9999"):
        RemoteClient.launch(EngineConfig(model=str(folder), max_model_len=9999))


def test_a_process_that_ends_while_loading_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="ended with status 1 while it loaded"):
        RemoteClient.launch(config(folder))


def test_a_process_that_is_silent_while_it_loads_is_ended(folder: Path) -> None:
    spawned = spawn_engine()
    os.kill(spawned.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(ModelError, match="said nothing for 3 s while it loaded"):
        RemoteClient(spawned).load(config(folder), silence_s=3.0)
    assert 3.0 < time.monotonic() - began < 8.0
    assert spawned.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("at", ["first", "last", "death"])
def test_a_listener_that_raises_ends_alone(at: str, folder: Path) -> None:
    client = RemoteClient.launch(config(folder))
    heard: dict[str, list[RequestOutput]] = {"good": [], "bad": []}

    def bad(output: RequestOutput) -> None:
        heard["bad"].append(output)
        if at == "first" or output.finish is not None:
            raise ZeroDivisionError

    sampling = SamplingParams(max_tokens=480, temperature=0.0, ignore_eos=True)
    for name, listen in (("bad", bad), ("good", heard["good"].append)):
        client.start_request(Request(id=name, prompt=(65,), sampling=sampling, stream=True), listen)
    if at == "death":
        wait_until(lambda: bool(heard["good"] and heard["bad"]))
        client.kill()
    wait_until(lambda: bool(heard["good"] and heard["good"][-1].finish is not None))
    if at == "first":
        assert len(heard["bad"]) == 1
    if at != "death":
        wait_until(lambda: client.stats().running == 0)
        assert client.alive
    client.close()


@pytest.fixture(scope="module", autouse=True)
def threads_of_others() -> set[threading.Thread]:
    """Other tests' processes may still be there."""
    return set(threading.enumerate())


def test_no_threads_are_left_behind(threads_of_others: set[threading.Thread]) -> None:
    """The one process that the tests share has a writer and a reader."""
    gc.collect()
    names = ("bough-writer", "bough-reader")
    wait_until(lambda: sum(each.name in names for each in {*threading.enumerate()} - threads_of_others) <= 2)
