"""Supervisor of an engine process: watches it and restarts it when it ends. Used by `bough serve`."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from ..protocol.config import EngineConfig, SupervisorConfig
from ..protocol.counters import EngineStats, ModelInfo
from ..protocol.errors import BoughError, EngineError, EngineStartingError, EngineStoppedError
from ..protocol.program import Program, ProgramEvent
from ..protocol.request import Request, RequestOutput
from ..tokenizer.tokenizer import Tokenizer
from ..tools.registry import ToolCall, ToolRegistry
from .forks import forks, not_ours
from .remote import LOAD_STALL_S, Progress, RemoteClient
from .spawn import EngineProcess
from .streams import StreamingClient
from .watchdog import TICK_S

logger = logging.getLogger("bough.engine")

STATS_TIMEOUT_S = 0.5
"""Seconds after which the previous counters are returned instead of new ones."""

RESTARTS_WITHIN_S = 600.0
"""Time in which restarts are counted."""

PAUSES_S = (5.0, 20.0)
"""Pauses after successive failed attempts: the obstacle may be temporary."""

MIN_LOAD_SILENCE_S = 30.0
"""Shortest limit on the silence of a loading process: on a busy machine, its imports take long."""

LOAD_STALLS = 10.0
"""Limit on one step of a load, in multiples of `stuck_timeout_s`; at least LOAD_STALL_S."""


class Supervisor(StreamingClient):
    """`EngineClient` over one engine process after another.

    When a process ends, its work fails with `engine_dead`, or with `engine_stuck` if it was killed because it made no
    progress for `stuck_timeout_s`; its kept states and its cache are lost. Then the next process is started, at once at
    first and after a pause if that fails, up to `restarts` times in RESTARTS_WITHIN_S. After that the client is no
    longer alive.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        spawned: EngineProcess | None = None,
        *,
        restarts: int = 3,
        stuck_timeout_s: float = 60.0,
    ) -> None:
        """Starts the first process, or takes over the one that was `spawned` before, and waits until it is ready.

        Raises:
            ModelError: the model cannot be loaded.
            RequestError: a setting is out of range.
        """
        watch = SupervisorConfig(restarts=restarts, stuck_timeout_s=stuck_timeout_s)
        super().__init__(self, ToolRegistry())
        self._config = config or EngineConfig()
        self._stuck_timeout_s = watch.stuck_timeout_s
        self._restarts = deque([-math.inf] * watch.restarts)  # times of the last restarts
        self._num_restarts = 0
        self._client = RemoteClient(spawned)
        self._load(self._client, progress)
        self._loading: RemoteClient | None = None
        self._ready_at = 0.0  # time at which the engine being started should be ready
        self._alive = self._ready = True
        self._forked = False
        self._stats = EngineStats()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="bough-keeper", daemon=True)
        self._keeper.start()
        forks.watch(self._after_fork)

    @property
    def info(self) -> ModelInfo:
        return self._client.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def process_id(self) -> int:
        """Id of the engine's current process."""
        return self._client.process_id

    def check(self) -> None:
        self._engine.check()

    def _after_fork(self) -> None:
        self._forked = True
        self._alive = self._ready = False

    def start_request(self, request: Request, listen: Callable[[RequestOutput], None]) -> None:
        self._engine.start_request(request, listen)

    def abort(self, request_id: str) -> None:
        self._client.abort(request_id)

    def start_program(
        self, program: Program, listen: Callable[[ProgramEvent], None], tools: Mapping[str, ToolCall] | None
    ) -> Callable[[], None]:
        return self._engine.start_program(program, listen, {**self.tools, **(tools or {})})

    def drop(self, program_id: str) -> None:
        self._client.drop(program_id)

    def stats(self) -> EngineStats:
        """Returns the engine's counters since its process started; the previous ones if it is busy or gone."""
        up = True
        try:
            self.check()
            self._stats = self._client.stats(STATS_TIMEOUT_S)
        except EngineStoppedError:
            up = False
        except EngineError:
            pass
        return msgspec.structs.replace(self._stats, up=int(up), restarts_total=self._num_restarts)

    def flush_cache(self) -> bool:
        return self._engine.flush_cache()

    def close(self, *, at_once: bool = False) -> None:
        """Ends the engine; its work fails. May be called twice. Does nothing in a forked child."""
        if self._forked:
            return
        with self._lock:
            self._closed.set()
            loading = self._loading  # the keeper's thread clears it without the lock
            if loading is not None:  # loading can take long
                loading.kill()
            if at_once:
                self._client.kill()
        self._keeper.join(timeout=30.0)
        self._alive = self._ready = False
        self._client.close()

    @property
    def _engine(self) -> RemoteClient:
        """The engine that takes requests. Raises EngineStoppedError, EngineStartingError."""
        if self._ready:
            return self._client
        if self._alive:
            error = EngineStartingError("the engine is being started again")
            error.retry_after_s = self._ready_at - time.monotonic()
            raise error
        if self._forked:
            raise not_ours()
        raise EngineStoppedError("the engine has ended, and is not started again")

    def _keep(self) -> None:
        try:
            while self._alive and not self._closed.wait(TICK_S):
                self._client.watch(self._stuck_timeout_s)
                if not self._client.alive:
                    logger.error("the engine process %d has ended", self._client.process_id)
                    self._ready_at = time.monotonic() + self._client.load_s
                    self._ready = False
                    self._client.close()
                    self._alive = self._ready = self._start_again()
        except Exception:
            logger.exception("the engine can no longer be watched")
        finally:
            self._alive = self._ready = False

    def _load(self, client: RemoteClient, progress: Progress | None = None) -> None:
        silence_s = max(self._stuck_timeout_s, MIN_LOAD_SILENCE_S)
        client.load(self._config, progress, silence_s, max(LOAD_STALLS * self._stuck_timeout_s, LOAD_STALL_S))

    def _start_again(self) -> bool:
        """Starts the next process. Returns True once it is ready, False if no more may be started."""
        for pause_s in itertools.chain((0.0,), PAUSES_S, itertools.repeat(PAUSES_S[-1])):
            if not self._may_restart():
                break
            self._ready_at = time.monotonic() + pause_s + self._client.load_s
            if self._closed.wait(pause_s):
                break
            try:
                with self._lock:
                    if self._closed.is_set():
                        break
                    self._loading = RemoteClient(crashed_at=time.monotonic())
                self._load(self._loading)
            except Exception as error:  # whatever the reason, the next attempt may succeed
                expected = isinstance(error, BoughError | OSError)
                reason = error if expected else f"{type(error).__name__}: {error}"
                logger.error("the engine could not be started again: %s", reason, exc_info=not expected)
            else:
                self._client = self._loading
                logger.warning("the engine was started again, as process %d", self.process_id)
                return True
            finally:
                self._loading = None
        return False

    def _may_restart(self) -> bool:
        now = time.monotonic()
        if not self._restarts or now - self._restarts[0] < RESTARTS_WITHIN_S:
            logger.error("the engine is not started again: it has ended too often")
            return False
        self._restarts.rotate(-1)
        self._restarts[-1] = now
        self._num_restarts += 1
        return True
