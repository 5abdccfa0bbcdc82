"""Compiles constraints on worker threads, each once, and keeps what was compiled within a bound of bytes."""

from __future__ import annotations

import atexit
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Lock, Thread

import msgspec
from llguidance import LLMatcher, LLParserLimits

from .backend_errors import to_grammar_error
from .completion import Completer
from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError
from .grammar import Grammar
from .lower import lower
from .matcher import CompiledGrammar
from .spec import GrammarSpec, JsonSchema
from .tokens import TokenTable
from .vocabulary import Vocabulary

EXIT_TIMEOUT_S = 5.0
ERROR_LIFE_S = 30.0
MAX_ERRORS = 1_000
MAX_ABANDONED = 8
"""Compilations past their time that may still hold a thread; beyond it new work waits for one of them to end."""


class GrammarCompiler:
    """Turns specs into grammars for one vocabulary. Thread-safe.

    Equal specs share one compilation and one grammar. Grammars are dropped least recently used first when together
    they pass `cache_bytes`; errors are remembered for `ERROR_LIFE_S`. A compilation that takes longer than `timeout_s`
    fails with GrammarTooComplexError, and its thread is replaced, so that it holds nobody up.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, num_threads: int = 2, cache_bytes: int = 256 << 20, timeout_s: float = 5.0
    ) -> None:
        self._tokens = TokenTable(vocabulary)
        self._cache = _Cache(cache_bytes)
        self._pool = _Pool(num_threads, timeout_s)
        self._lock = Lock()
        self._under_way: dict[bytes, Future[Grammar]] = {}
        self.compiled = 0
        self.cache_hits = 0

    def submit(self, spec: GrammarSpec) -> Future[Grammar]:
        """The grammar of `spec`, or a GrammarError, as a future. Cancelling it has no effect on others' wait."""
        key = hashlib.blake2b(msgspec.msgpack.encode(spec), digest_size=16).digest()
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self.cache_hits += 1
                return _settled(found)
            shared = self._under_way.get(key)
            if shared is None:
                shared = Future()
                shared.set_running_or_notify_cancel()
                self._under_way[key] = shared
                shared.add_done_callback(lambda done: self._keep(key, done))
                self._pool.run(lambda: compile_grammar(spec, self._tokens), shared)
            else:
                self.cache_hits += 1
            return shared

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of `spec`. Raises GrammarError."""
        return self.submit(spec).result()

    def abandon(self, future: Future[Grammar]) -> None:
        """Nobody waits for `future`, which `submit` gave, any more: what has not begun is not compiled at all."""
        with self._lock:
            if not self._pool.drop(future):
                return
            self._under_way = {key: other for key, other in self._under_way.items() if other is not future}
        future.set_exception(GrammarError("nobody waits for the constraint"))

    def close(self) -> None:
        """Ends the workers. What is under way or waits fails with GrammarError."""
        self._pool.close()

    def _keep(self, key: bytes, done: Future[Grammar]) -> None:
        error = done.exception()
        with self._lock:
            if self._under_way.get(key) is not done:  # it was abandoned
                return
            del self._under_way[key]
            if error is None:
                self.compiled += 1
                self._cache.put(key, done.result())
            elif isinstance(error, GrammarError):
                self._cache.put_error(key, error)


def compile_grammar(spec: GrammarSpec, tokens: TokenTable) -> CompiledGrammar:
    """Compiles `spec` here and now. Raises GrammarError."""
    try:
        lowered = lower(spec)
        start = LLMatcher(tokens.tokenizer, lowered.source, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if start.is_error():
            raise to_grammar_error(start.get_error(), spec)
        completer = Completer(tokens, json=lowered.json, names=lowered.names, words=lowered.words)
        num_bytes = 200_000 + 64 * len(lowered.source)  # measured: 0.1 MB for half of real schemas, 3 MB for 1 in 100
        grammar = CompiledGrammar(
            start, tokens, completer, json=lowered.json, growth=lowered.growth, num_bytes=num_bytes
        )
        _check_start(grammar, spec)
        return grammar
    except RecursionError:
        raise GrammarTooComplexError("the constraint is nested too deeply") from None


def _check_start(grammar: CompiledGrammar, spec: GrammarSpec) -> None:
    mask = grammar.tokens.end()
    mask[:] = 0
    state = grammar.matcher().state
    state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if state.is_error():
        raise to_grammar_error(state.get_error(), spec)
    if not mask.any():
        raise (InvalidSchemaError if isinstance(spec, JsonSchema) else GrammarError)("nothing satisfies the constraint")


def _settled(found: Grammar | GrammarError) -> Future[Grammar]:
    future: Future[Grammar] = Future()
    if isinstance(found, GrammarError):
        future.set_exception(found)
    else:
        future.set_result(found)
    return future


class _Cache:
    """Grammars by key, bounded in bytes; errors by key, bounded in time. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()
        self._errors: OrderedDict[bytes, tuple[float, GrammarError]] = OrderedDict()

    def get(self, key: bytes) -> Grammar | GrammarError | None:
        if key in self._grammars:
            self._grammars.move_to_end(key)
            return self._grammars[key]
        if key in self._errors:
            expires, error = self._errors[key]
            if time.monotonic() < expires:
                return error
            del self._errors[key]
        return None

    def put(self, key: bytes, grammar: Grammar) -> None:
        self._grammars[key] = grammar
        self._num_bytes += grammar.num_bytes
        while self._num_bytes > self._max_bytes:
            _, dropped = self._grammars.popitem(last=False)
            self._num_bytes -= dropped.num_bytes

    def put_error(self, key: bytes, error: GrammarError) -> None:
        self._errors[key] = (time.monotonic() + ERROR_LIFE_S, error.with_traceback(None))
        if len(self._errors) > MAX_ERRORS:
            self._errors.popitem(last=False)


@dataclass(eq=False)
class _Job:
    work: Callable[[], Grammar]
    future: Future[Grammar]
    deadline: float = 0.0


class _Pool:
    """Worker threads, and one that watches their time. Jobs past it fail at once; their worker is replaced."""

    def __init__(self, num_threads: int, timeout_s: float) -> None:
        self._num_threads = num_threads
        self._timeout_s = timeout_s
        self._changed = Condition()
        self._waiting: list[_Job] = []
        self._running: list[_Job] = []
        self._num_abandoned = 0
        self._closed = False
        self._started = False
        self._threads: list[Thread] = []

    def run(self, work: Callable[[], Grammar], future: Future[Grammar]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the grammar compiler is closed")
            if not self._started:
                self._started = True
                atexit.register(self._exit)
                Thread(target=self._watch, name="grammar-watch", daemon=True).start()
                for _ in range(self._num_threads):
                    self._start_worker()
            self._waiting.append(_Job(work, future))
            self._changed.notify_all()

    def drop(self, future: Future[Grammar]) -> bool:
        """Forgets a job that has not begun; False if there is none."""
        with self._changed:
            left = [job for job in self._waiting if job.future is not future]
            dropped = len(left) < len(self._waiting)
            self._waiting = left
            return dropped

    def close(self) -> None:
        atexit.unregister(self._exit)
        with self._changed:
            self._closed = True
            left, self._waiting, self._running = [*self._waiting, *self._running], [], []
            self._changed.notify_all()
        for job in left:
            job.future.set_exception(GrammarError("the grammar compiler was closed"))

    def _exit(self) -> None:
        """At the interpreter's end: a thread that is cut off inside native code takes the whole process with it."""
        self.close()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _start_worker(self) -> None:
        thread = Thread(target=self._work, name="grammar-compile", daemon=True)
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                job = self._waiting.pop(0)
                job.deadline = time.monotonic() + self._timeout_s
                self._running.append(job)
                self._changed.notify_all()
            result: Grammar | None = None
            error: BaseException | None = None
            try:
                result = job.work()
            except Exception as failure:  # noqa: BLE001  # it is raised from the future, where someone waits for it
                error = failure
            with self._changed:
                if job not in self._running:  # its time was over, and another worker has taken this one's place
                    self._num_abandoned -= 1
                    self._changed.notify_all()
                    return
                self._running.remove(job)
            if error is not None:
                job.future.set_exception(error)
            elif result is not None:
                job.future.set_result(result)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                late = [job for job in self._running if job.deadline <= now and self._num_abandoned < MAX_ABANDONED]
                for job in late:
                    self._running.remove(job)
                    self._num_abandoned += 1
                    self._start_worker()
                if not late:
                    next_deadline = min((job.deadline for job in self._running), default=None)
                    self._changed.wait(None if next_deadline is None else max(next_deadline - now, 0.01))
            for job in late:
                reason = f"compiling the constraint took longer than {self._timeout_s:g} s"
                job.future.set_exception(GrammarTooComplexError(reason))
