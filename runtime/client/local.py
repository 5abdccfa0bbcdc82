"""An engine on a thread of this process: for scripts and notebooks, and inside the engine process."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import msgspec

from ...constrain.workers.turns import FairQueue, settle
from ...radix import tenant_of
from ..engine.engine import Engine
from ..programs.engine_machine import EngineMachine
from ..programs.executor import Executor
from ..protocol.config import EngineConfig
from ..protocol.counters import EngineStats
from ..protocol.errors import BoughError, EngineStoppedError, ErrorInfo, to_info
from ..protocol.program import Failed, Program, ProgramEvent
from ..protocol.request import Finish, Request, RequestOutput
from ..tools.registry import ToolCall, ToolRegistry, ToolRunner
from .forks import forks, not_ours
from .streams import StreamingClient

logger = logging.getLogger("bough.engine")

QUIET_S = 1.0
"""Idle time after which a serving engine prepares for its first constraint."""

REST_S = 0.02
"""Idle time after which an engine prepares for later passes."""

MAX_SLEEP_S = 60.0
"""Longest sleep until a deadline: the system does not accept waits of any length."""

MAX_CALLS_S = 0.02
"""Time spent on calls after which the engine makes a step before it takes more."""

Answer = TypeVar("Answer")


Kind = Literal["request", "program"]


@dataclass(eq=False, slots=True)
class _Submission:
    """A request or a program that waits for the engine's thread.

    key     its kind and its id
    make    starts it
    refuse  tells the listener that it never starts
    then    calls to make right after it
    """

    key: tuple[Kind, str]
    make: Callable[[], None]
    refuse: Callable[[], None]
    then: list[Callable[[], None]] = field(default_factory=list)


class Submissions:
    """Requests and programs that wait for the engine's thread: tenants take turns, by the time spent on each so far."""

    def __init__(self) -> None:
        self._queue: FairQueue[_Submission] = FairQueue()
        self._last: dict[tuple[Kind, str], _Submission] = {}  # of those that wait
        self._lock = threading.RLock()  # reentrant: a generator freed while it is held aborts its request

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, tenant: str, submission: _Submission) -> None:
        with self._lock:
            self._queue.push(tenant, submission)
            self._last[submission.key] = submission

    def withdraw(self, request_id: str) -> bool:
        """Makes a waiting request be refused in its turn; returns False if it does not wait."""
        with self._lock:
            waiting = self._last.get(("request", request_id))
            if waiting is not None:
                waiting.make = waiting.refuse
            return waiting is not None

    def follow(self, program_id: str, call: Callable[[], None]) -> bool:
        """Schedules `call` right after the start of a waiting program; returns False if it does not wait."""
        with self._lock:
            waiting = self._last.get(("program", program_id))
            if waiting is not None:
                waiting.then.append(call)
            return waiting is not None

    def make(self, ends: float) -> None:
        """Starts the waiting submissions, at least one, until `ends` by the monotonic clock."""
        for _ in range(len(self)):
            with self._lock:
                taken = self._queue.pop()
                if taken is None:
                    return
                tenant, submission = taken
                if self._last.get(submission.key) is submission:
                    del self._last[submission.key]
            began = time.monotonic()
            for call in (submission.make, *submission.then):
                _make(call)
            now = time.monotonic()
            with self._lock:
                self._queue.end(tenant, now - began)
            if now >= ends:
                return


class EngineLoop:
    """Runs an engine and its executor on one thread, which sleeps when idle. Calls arrive through an inbox, requests
    and programs through queues by tenant.

    Whatever was started gets its terminal event, even if the loop is closed or dies.

    on_death    called once the loop has died, after these events
    serves      prepare for constraints after QUIET_S of idleness
    """

    def __init__(
        self,
        engine: Engine,
        config: EngineConfig,
        on_death: Callable[[], None] | None = None,
        *,
        serves: bool = False,
    ) -> None:
        self.engine = engine
        self._on_death = on_death
        self.tools = ToolRegistry()
        self._runner = ToolRunner()
        machine = EngineMachine(engine, time.monotonic, post=self._post, runner=self._runner)
        self._executor = Executor(
            machine, time.monotonic, max_states=config.max_states, post=self._post_turn, tools=self.tools
        )
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._submissions = Submissions()
        self._turn: Callable[[], None] | None = None  # of programs that continue before the next step
        self._stopped = False
        self._forked = False
        self._warm_at = time.monotonic() + QUIET_S if serves else math.inf
        self._rest_s: float | None = REST_S  # until more can be prepared; None: nothing can
        self._lock = threading.RLock()
        self._turned: float | None = None  # start of the current step; None: the loop sleeps
        engine.wake = lambda: self._inbox.put(_nothing)
        self._thread = threading.Thread(target=self._run, name="bough-engine", daemon=True)
        self._thread.start()
        # A thread that is inside native code when the interpreter ends would crash the process.
        weakref.finalize(self, _end, self._inbox, self._thread)
        forks.watch(self._after_fork)

    @property
    def alive(self) -> bool:
        return not self._stopped

    def check(self) -> None:
        """Raises EngineStoppedError: the loop has ended, or belongs to the process from which this one was forked."""
        if self._forked:
            raise not_ours()
        if self._stopped:
            raise EngineStoppedError("the engine has stopped")

    def _after_fork(self) -> None:
        self._stopped = self._forked = True
        _parents_engines.append(self.engine)
        # Threads that are not here may hold the locks of these.
        self._lock = threading.RLock()
        self._submissions = Submissions()

    @property
    def step_began(self) -> float | None:
        """Time at which the current step, the calls before it, or the loop's shutdown began; None while the loop
        sleeps, and once it has ended."""
        return self._turned

    def start_request(self, request: Request, listen: Callable[[RequestOutput], None]) -> None:
        """Queues a request. `listen` is called from the engine's thread; a refusal arrives as the terminal event.

        Raises:
            EngineStoppedError: the loop has ended.
        """

        def submit() -> None:
            try:
                self.engine.submit(request, listen)
            except BaseException as error:  # noqa: BLE001  it goes to the listener, a panic of native code, too
                listen(RequestOutput(id=request.id, finish=Finish(reason="error", error=_refusal(error))))

        def refuse() -> None:
            listen(RequestOutput(id=request.id, finish=Finish(reason="abort")))

        self._submit(request.namespace, _Submission(("request", request.id), submit, refuse))

    def start_program(
        self,
        program: Program,
        listen: Callable[[ProgramEvent], None],
        tools: Mapping[str, ToolCall] | None = None,
        key: object = None,
    ) -> Callable[[], None]:
        """Queues a program. `listen` is called from the engine's thread; a refusal arrives as the terminal event.

        Returns a function that drops the program if this submission is in flight, as `drop` with its `key` does; the
        key must be unique.

        Raises:
            EngineStoppedError: the loop has ended.
        """
        key = object() if key is None else key

        def start() -> None:
            try:
                self._executor.run(program, listen, tools, key)
            except BaseException as error:  # noqa: BLE001  it goes to the listener, a panic of native code, too
                listen(Failed(error=_refusal(error)))

        self._submit(program.namespace, _Submission(("program", program.id), start, _nothing))
        return partial(self.drop, program.id, key)

    def abort(self, request_id: str) -> None:
        """Ends a request; one that still waits for the engine's thread never starts."""
        with contextlib.suppress(EngineStoppedError):
            if not self._submissions.withdraw(request_id):
                self._post(lambda: self.engine.abort(request_id))

    def drop(self, program_id: str, key: object = None) -> None:
        drop = partial(self._executor.drop, program_id, key)
        with contextlib.suppress(EngineStoppedError):
            if not self._submissions.follow(program_id, drop):
                self._post(drop)

    def ask(self, question: Callable[[], Answer], answer: Callable[[Answer], None]) -> None:
        """Calls `question` on the engine's thread, between steps, and `answer` with its result."""
        self._post(lambda: answer(question()))

    def stats(self) -> EngineStats:
        """Returns the counters of engine and executor. To be called on the engine's thread."""
        executor = self._executor
        return msgspec.structs.replace(
            self.engine.stats(),
            states=executor.num_states,
            abandoned_tools=self._runner.num_abandoned,
            programs_total=executor.num_programs,
        )

    def close(self) -> None:
        """Ends all requests and programs, and waits for the thread. May be called twice. Does nothing in a child."""
        if self._forked:
            return
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30.0)

    def _post(self, call: Callable[[], None]) -> None:
        with self._lock:
            self.check()
            self._inbox.put(call)

    def _submit(self, namespace: str, submission: _Submission) -> None:
        with self._lock:
            self.check()
            self._submissions.put(tenant_of(namespace), submission)
            self._inbox.put(_nothing)

    def _post_turn(self, turn: Callable[[], None]) -> None:
        """Schedules `turn` before the next step. To be called on the engine's thread."""
        self._turn = turn

    def _run(self) -> None:
        died = False
        try:
            while self._take_calls():
                works = not self.engine.idle
                self.engine.step()
                self._executor.expire()  # after the step, whose own timeouts name the request to blame
                if works:
                    self._rest_s = REST_S
                    if self._warm_at < math.inf:
                        self._warm_at = time.monotonic() + QUIET_S
        except BaseException:  # a panic of native code is no Exception
            logger.exception("the engine has died")
            died = True
        with self._lock:
            self._stopped = True
        self._turned = time.monotonic()  # so that the watchdog sees a shutdown that hangs, like a step
        self.engine.expected_s = 0.0
        try:
            self._end_all()
        finally:
            self._turned = None
            if died and self._on_death is not None:
                self._on_death()

    def _end_all(self) -> None:
        """Ends all live work and refuses all that waits, despite errors: the one that ended the loop may recur."""
        for part in (self._executor, self._runner, self.engine):
            try:
                part.close()
            except BaseException:
                logger.exception("a part of the engine did not end in order")
        self._submissions.make(math.inf)  # the closed engine and executor refuse them
        while not self._inbox.empty():
            call = self._inbox.get()
            if call is not None:
                _make(call)

    def _take_calls(self) -> bool:
        """Makes the waiting calls, sleeping until one comes if there is nothing to compute. Returns False to close.

        Calls that arrive meanwhile, and those beyond MAX_CALLS_S, wait until after the next step, so that many callers
        cannot delay it. After the calls, requests and programs are submitted, tenants in turn; last, programs that
        paused continue, so that no request waits for one.
        """
        num_left = self._inbox.qsize()
        self._turned = time.monotonic()
        self.engine.expected_s = 0.0  # until its step says more
        while num_left > 0 or (self._turn is None and not self._submissions and self.engine.idle):
            try:
                call = self._get(self._sleep_s()) if num_left <= 0 else self._inbox.get()
            except queue.Empty:
                self._use_rest()
                return True  # for a deadline, or after MAX_SLEEP_S
            if call is None:
                return False
            num_left -= 1
            _make(call)
            if time.monotonic() - (self._turned or 0.0) >= MAX_CALLS_S:
                break
        self._submissions.make((self._turned or 0.0) + MAX_CALLS_S)
        turn, self._turn = self._turn, None
        if turn is not None:
            _make(turn)
        return True

    def _get(self, sleep_s: float | None) -> Callable[[], None] | None:
        self._turned = None
        try:
            return self._inbox.get(timeout=sleep_s)
        finally:
            self._turned = time.monotonic()

    def _sleep_s(self) -> float | None:
        """Returns how long the idle loop may sleep, MAX_SLEEP_S at most; None: until it is woken.

        The sleep ends at the first deadline of a request that waits for a compilation or a check, when the executor has
        something to end, or when the loop prepares for later passes or constraints.
        """
        parts = (self.engine.sleep_s(), self._executor.sleep_s(), self._rest_s)
        ends = [end for end in parts if end is not None]
        if self._warm_at < math.inf:
            ends.append(max(self._warm_at - time.monotonic(), 0.0))
        return min(*ends, MAX_SLEEP_S) if ends else None

    def _use_rest(self) -> None:
        """Prepares for later passes and constraints while idle; errors are logged and do not stop the engine."""
        if self._rest_s is not None:
            self._rest_s = None
            _make(self._prepare)
        if time.monotonic() >= self._warm_at:
            self._warm_at = math.inf
            _make(self.engine.warm)

    def _prepare(self) -> None:
        if self.engine.prepare():
            self._rest_s = 0.0


_parents_engines: list[Engine] = []
"""Engines of the process from which this one was forked, kept to the end: to free one would wait for its threads."""


def _end(inbox: queue.SimpleQueue[Callable[[], None] | None], thread: threading.Thread) -> None:
    inbox.put(None)
    thread.join(timeout=10.0)


def _nothing() -> None:
    """Does nothing: posted only to wake the loop."""


def _make(call: Callable[[], None]) -> None:
    """Makes a call; errors are logged and do not stop the engine."""
    try:
        call()
    except Exception:
        logger.exception("a call of the engine failed")


def _refusal(error: BaseException) -> ErrorInfo:
    if isinstance(error, BoughError):
        return to_info(error)
    logger.error("what was asked for could not be started", exc_info=error)
    return ErrorInfo(code="internal_error", message="what was asked for could not be started")


class LocalClient(StreamingClient):
    """`EngineClient` for an `EngineLoop` of this process."""

    def __init__(self, loop: EngineLoop) -> None:
        super().__init__(loop, loop.tools)
        self._loop = loop
        self.tokenizer = loop.engine.tokenizer
        self.info = loop.engine.info

    @classmethod
    def load(
        cls, config: EngineConfig | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> LocalClient:
        """Loads the model that `config` names; see start.start_engine."""
        from ..load.start import start_engine  # noqa: PLC0415  pulls numpy and the grammars

        config = config or EngineConfig()
        return cls(EngineLoop(start_engine(config, progress), config))

    @property
    def alive(self) -> bool:
        return self._loop.alive

    def check(self) -> None:
        self._loop.check()

    def stats(self) -> EngineStats:
        return self._wait(self._loop.stats)

    def flush_cache(self) -> bool:
        return self._wait(self._loop.engine.flush_cache)

    def close(self, *, at_once: bool = False) -> None:
        """Closes the loop. `at_once` makes no difference: a thread cannot be stopped in the middle of a step."""
        self._loop.close()

    def _wait(self, question: Callable[[], Answer]) -> Answer:
        answer: Future[Answer] = Future()
        self._loop.ask(partial(settle, answer, question), lambda _: None)
        return answer.result()
