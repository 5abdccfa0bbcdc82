"""Grammar compiler: compiles each constraint once and caches the grammars within a limit of bytes."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from .errors import (
    GrammarError,
    GrammarTooComplexError,
    InvalidSchemaError,
    MatcherError,
    UnsupportedKeywordError,
)
from .json_schema.parse import checked_formats
from .json_text.parts import all_parts, all_schemas, json_parts
from .lower import lower, lower_loosely, to_grammar_error
from .lowered import Lowered, Tabulate
from .matchers.completion import Completer
from .matchers.interface import Grammar, GrammarState, Matcher, Tabulation
from .matchers.lexer import Lexer, start_state
from .matchers.table.tables import RegularTables
from .matchers.tagged.compile import compile_structural
from .matchers.token_matcher import CompiledGrammar
from .matchers.unique.state import DistinctState
from .receipt import Finding, Receipt, Violation
from .spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, excess_of
from .vocabulary.token_table import TokenTable
from .vocabulary.vocabulary import Vocabulary
from .workers.cache import GrammarCache
from .workers.jobs import Check, Checked, Done, Lower, Tabulated, is_small
from .workers.process import NoProcessError
from .workers.service import CompileService, Turn
from .workers.turns import outcome

PlainSpec = JsonSchema | Regex | Choice | Lark | Gbnf

TABLE_PATIENCE_S = 1.0
"""Time limit for building a table that spares a generation the search for a way to its end."""


class GrammarCompiler:
    """Turns specs into grammars for one vocabulary. Thread-safe.

    Equal specs share one compilation and one grammar; the order of a schema's keys counts. Beyond `cache_bytes` in all,
    the least recently used grammars are dropped; errors are remembered for a while. A compilation that takes longer
    than `timeout_s` fails with GrammarTooComplexError and delays no other. Constraints that are not plainly small are
    lowered in separate processes, started on demand, which can be killed. A small regular constraint becomes a table at
    once; a larger one when it is requested again, for later requests.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, num_threads: int = 2, cache_bytes: int = 256 << 20, timeout_s: float = 4.0
    ) -> None:
        self.tokens = TokenTable(vocabulary)
        self._cache = GrammarCache(cache_bytes)
        self._tables = RegularTables(self.tokens)
        self._service = CompileService(num_threads=num_threads, timeout_s=timeout_s)
        weakref.finalize(self, self._service.discard).atexit = False  # the service handles the exit itself
        self._lock = Lock()  # guards the start of tabulations
        self._last: tuple[GrammarSpec, bytes] | None = None

    @property
    def compiled(self) -> int:
        """Number of grammars compiled so far."""
        return self._cache.num_compiled

    @property
    def cache_hits(self) -> int:
        """Number of constraints that were compiled or being compiled when they were requested."""
        return self._cache.num_hits

    @property
    def num_waiting(self) -> int:
        """Number of compilations that have not begun."""
        return self._service.num_waiting

    @property
    def cached_bytes(self) -> int:
        """Approximate size of the cached grammars in bytes."""
        return self._cache.num_bytes

    @property
    def process_ids(self) -> list[int]:
        """Ids of the worker processes."""
        return self._service.process_ids

    def submit(self, spec: GrammarSpec, tenant: str = "") -> Future[Grammar]:
        """Returns a future of the grammar of `spec`, or of a GrammarError. Cancelling it does not affect other callers.

        Tenants take turns: many compilations of one delay those of another no longer than one does. The call takes a
        few milliseconds at most, and almost no time if the same object was submitted last.
        """
        if not self._was_last(spec) and (excess := excess_of(spec)) is not None:
            refused: Future[Grammar] = Future()
            refused.set_exception(GrammarTooComplexError(excess))
            return refused
        future, is_new = self._cache.share(self._key_of(spec))
        if is_new:
            self._service.submit(lambda turn: self._compile(spec, turn), future, tenant=tenant)
        elif not future.done():
            self._service.join(future, tenant)
        elif future.exception() is None:
            with self._lock:
                self._begin_table(future.result(), tenant)
        return future

    def _key_of(self, spec: GrammarSpec) -> bytes:
        last = self._last
        if last is None or last[0] is not spec:
            self._last = last = spec, _key(spec)
        return last[1]

    def _was_last(self, spec: GrammarSpec) -> bool:
        last = self._last
        return last is not None and last[0] is spec

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Returns the grammar of `spec`. Raises GrammarError."""
        return outcome(self.submit(spec))

    def check(self, spec: GrammarSpec, text: str, receipt: Receipt | None, tenant: str = "") -> Future[list[Finding]]:
        """Checks a finished text against the schemas of `spec`; returns a future of the findings, usually none.

        Control tokens are spelt out in `text`. `receipt` is that of the grammar of `spec`: it names the formats to
        check. The future raises GrammarError if the check cannot be completed, for example because it takes too long.
        """
        pointers = receipt.checked if receipt is not None else ()
        result: Future[list[Finding]] = Future()
        result.set_running_or_notify_cancel()
        work = partial(_check_parts, spec, text, pointers)
        self._service.submit(work, result, urgent=True, tenant=tenant)
        return result

    def warm(self) -> Future[Any]:
        """Prepares what the first constraints need in the background; returns a future of its end.

        That is the tokenizer, a process, and whatever else is built once. Does nothing after the first constraint.
        """
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()
        if self._cache.untouched:
            self._service.submit(self._rehearse, done)
        else:
            done.set_result(None)
        return done

    def abandon(self, future: Future[Any]) -> None:
        """Abandons a future of `submit` or `check` that is no longer needed; work that has not begun is dropped."""
        with self._cache.lock:
            if not self._service.drop(future):
                return
            self._cache.forget(future)
        future.set_exception(GrammarError("the constraint is no longer needed"))

    def close(self) -> None:
        """Ends the workers. Running and waiting compilations fail with GrammarError."""
        self._service.close()

    def foresee(self, matcher: Matcher, token: int, remaining: int) -> tuple[Matcher, int]:
        """Returns a matcher that has accepted `token` in place of `matcher`, which is not changed, and the token taken.

        Has no time limit and may take a second. For a regular constraint a table is built first, which knows all ways
        to the end. Raises MatcherError.
        """
        matcher = self._on_table(matcher) or matcher.copy()
        return matcher, matcher.accept(token, remaining)

    def _rehearse(self, turn: Turn) -> None:
        for spec in _REHEARSED:
            self._compile(spec, turn)

    def _compile(self, spec: GrammarSpec, turn: Turn) -> Grammar:
        if not self.tokens.has_tokenizer:
            if _needs_process(spec):
                self._service.processes.start_ahead()
            turn.prepare(lambda: self.tokens.tokenizer)
        try:
            grammar = compile_grammar(
                spec, self.tokens, lambda part: _lower_elsewhere(part, turn), turn.yield_to_others
            )
            return grammar if grammar.tabulation is None else self._tables.at_once(grammar, grammar.tabulation)
        except (GrammarTooComplexError, UnsupportedKeywordError):
            if not isinstance(spec, JsonSchema) or spec.policy != "best_effort":
                raise
            turn.extend()
            return compile_loosely(spec, self.tokens)

    def _on_table(self, matcher: Matcher) -> Matcher | None:
        """Returns a matcher at the place of `matcher` on its constraint's table; None if there is no table in time."""
        with self._lock:
            tabulation = self._begin_table(matcher.tabulable)
        if tabulation is None or not wait_for([tabulation.table], TABLE_PATIENCE_S).done:
            return None
        if tabulation.table.exception() is not None:
            return None
        following = tabulation.table.result().matcher()
        try:
            for token in matcher.taken:
                following.accept(token)
        except MatcherError:  # a table knows no NUL
            return None
        return following

    def _begin_table(self, grammar: Grammar | None, tenant: str = "") -> Tabulation | None:
        """Starts to build the table of a regular constraint, once."""
        tabulation = None if grammar is None else grammar.tabulation
        if grammar is not None and tabulation is not None and tabulation.begin():
            tabulation.table.add_done_callback(lambda done: self._keep_table(tabulation.key, done))
            work = partial(self._tabulate, tabulation.job, grammar)
            self._service.submit(work, tabulation.table, tenant=tenant)
        return tabulation

    def _tabulate(self, job: Tabulate, plain: Grammar, turn: Turn) -> Grammar:
        answer = turn.do(job)
        assert isinstance(answer, Tabulated)
        return self._tables.grammar(answer.automaton, plain)

    def _keep_table(self, key: bytes, done: Future[Grammar]) -> None:
        if done.exception() is None:  # without a table the grammar is followed step by step
            self._cache.put(key, done.result())


_REHEARSED: tuple[PlainSpec, ...] = (
    JsonSchema(
        '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}, "b": {"type": "number"}, '
        '"c": {"type": "array", "items": {"enum": ["a", 1]}}}, "required": ["a", "b"]}'
    ),
    JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    Regex("[a-z]+"),
)
"""Constraints that cover each path through the compiler: with a process, without one, and as a table."""


def _needs_process(spec: GrammarSpec) -> bool:
    parts = all_parts(spec)
    return not all(map(is_small, parts))


def compile_grammar(
    spec: GrammarSpec,
    tokens: TokenTable,
    lower_part: Callable[[PlainSpec], Lowered] | None = None,
    between_parts: Callable[[], None] = lambda: None,
) -> Grammar:
    """Compiles `spec` on this thread; `lower_part` lowers it, or each part of it, to a grammar. Raises GrammarError.

    `between_parts` is called between parts that take long, and may end the compilation by raising.
    """
    lower_part = lower_part or lower
    try:
        if isinstance(spec, Structural):
            return compile_structural(spec, tokens, lower_part, between_parts)
        return _compile_lowered(spec, lower_part(spec), tokens)
    except RecursionError:
        raise GrammarTooComplexError("the constraint is nested too deeply") from None


def compile_loosely(spec: JsonSchema, tokens: TokenTable) -> Grammar:
    """Compiles a schema that is too complex: enforces its type and leaves the rest to the check of the value.

    Raises:
        GrammarError: the schema is not valid, or exceeds a size limit.
    """
    return _compile_lowered(spec, lower_loosely(spec), tokens)


def _compile_lowered(spec: PlainSpec, lowered: Lowered, tokens: TokenTable) -> CompiledGrammar:
    def make() -> GrammarState:
        start = start_state(tokens, lowered.source)
        if start.is_error():
            raise to_grammar_error(start.get_error(), spec)
        if lowered.distinct is not None:
            start = DistinctState.guarding(start, tokens, lowered.distinct)
        return start

    start = make()
    _check_start(start, tokens, spec)
    completer = Completer(tokens, json=lowered.json, names=lowered.names, words=lowered.words)
    return CompiledGrammar(
        Lexer(start, make),
        tokens,
        completer,
        lowered,
        receipt=lowered.receipt or _plain_receipt(spec),
        tabulation=None if lowered.table is None else Tabulation(lowered.table, _key(spec)),
    )


def _plain_receipt(spec: PlainSpec) -> Receipt:
    """Returns the receipt of a constraint that its grammar enforces in full."""
    mode = spec.policy if isinstance(spec, JsonSchema) else "exact"
    return Receipt(mode=mode, enforced=(str(spec.__struct_config__.tag),))


def _check_start(state: GrammarState, tokens: TokenTable, spec: PlainSpec) -> None:
    """Raises GrammarError if nothing can be generated. The state and all its copies keep the computed mask."""
    mask = np.zeros(tokens.num_words, dtype=np.int32)
    state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if state.is_error():
        raise to_grammar_error(state.get_error(), spec)
    if not mask.any():
        raise (InvalidSchemaError if isinstance(spec, JsonSchema) else GrammarError)("nothing satisfies the constraint")


def _lower_elsewhere(spec: PlainSpec, turn: Turn) -> Lowered:
    """Lowers `spec` in a worker process, unless that is plainly little work."""
    if is_small(spec):
        return lower(spec)
    try:
        answer = turn.do(Lower(spec))
    except NoProcessError:
        return lower(spec)
    assert isinstance(answer, Done)
    return answer.lowered


def _check_parts(spec: GrammarSpec, text: str, pointers: Sequence[str], turn: Turn) -> list[Finding]:
    """Checks each part of `text`. Reports one that fits none of its schemas by the first, exact ones before others."""
    formats = {schema: checked_formats(schema.schema, pointers) for schema in all_schemas(spec)}
    findings: list[Finding] = []
    for part in json_parts(spec, text):
        best: list[Finding] | None = None
        for schema in sorted(part.schemas, key=lambda schema: schema.policy != "exact"):
            job = Check(schema.schema, part.text, formats[schema])
            found = [Finding(violation, schema.policy) for violation in _check(job, turn)]
            best = found if best is None or not found else best
            if not found:
                break
        findings += [Finding(Violation("", "the text contains none of the tags"), "exact")] if best is None else best
    return findings


def _check(job: Check, turn: Turn) -> list[Violation]:
    try:
        answer = turn.do(job)
    except NoProcessError:
        from .json_schema.validate import violations  # noqa: PLC0415  # a heavy import, for a process that cannot start another

        return violations(job.schema, job.text, formats=job.formats)
    assert isinstance(answer, Checked)
    return answer.violations


def _key(spec: GrammarSpec) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(spec), digest_size=16).digest()
