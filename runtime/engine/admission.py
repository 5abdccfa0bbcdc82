"""Admission of requests: validates them, heals their prompts, and holds them until grammars and patterns compile."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...constrain import Grammar, GrammarCompiler, GrammarError
from ...constrain.errors import REFUSALS, cut
from ...constrain.matchers.healing import Healer
from ...constrain.workers.turns import outcome
from ...radix import tenant_of
from ..protocol.config import EngineConfig
from ..protocol.counters import Counters, ModelInfo
from ..protocol.errors import EngineStoppedError, ErrorInfo, RequestError, to_info
from ..protocol.request import Request, RequestOutput
from ..protocol.sampling_params import derive
from ..protocol.stop_pattern import PatternSearch, StopPattern
from ..scheduler.scheduler import Scoring, Sequence, Standing
from ..scheduler.tenants import Places
from ..scheduler.token_tree import TreeLayout
from ..tokenizer.tokenizer import Tokenizer
from .detokenizer import Detokenizer
from .generation import Generation, Listener, Terms
from .stop_patterns import StopPatterns
from .token_healing import heal

logger = logging.getLogger("bough.engine")

MIN_WAITING_TOKENS = 1 << 22
WAITING_POOLS = 8
"""Limit on the prompt tokens of all requests: MIN_WAITING_TOKENS, or WAITING_POOLS times the cache's capacity if that
is more. A token takes about 45 bytes."""


@dataclass(frozen=True, eq=False, slots=True)
class Compiling:
    """Futures of the grammar and the pattern without which a request is not scheduled."""

    grammar: Future[Grammar] | None
    pattern: Future[StopPattern] | None

    @property
    def futures(self) -> list[Future[Any]]:
        return [future for future in (self.grammar, self.pattern) if future is not None]

    @property
    def done(self) -> bool:
        return all(future.done() for future in self.futures)


class Admission:
    """Turns requests into generations and has their grammars and patterns compiled. Calls `wake` from another thread
    when a compilation ends.

    trees      prompts may end as trees of tokens
    compiling  compilations in progress, by the id of the request that waits for each
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        counters: Counters,
        *,
        trees: bool,
        wake: Callable[[], None],
    ) -> None:
        self.trees = trees
        self.compiling: dict[str, Compiling] = {}
        self._seed = config.seed
        self._info = info
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(token for token in tokenizer.eos_ids if token < info.vocab_size)
        self._grammars = grammars
        self._patterns = StopPatterns()
        self._healer = Healer(grammars.tokens)
        self._counters = counters
        self._wake = wake
        max_tokens = max(MIN_WAITING_TOKENS, WAITING_POOLS * info.num_pages * info.page_size)
        self._places = Places(info.max_requests, config.tenant_weights, max_tokens=max_tokens)
        self._closed = False

    def take(
        self,
        request: Request,
        listener: Listener,
        live: Mapping[str, Generation],
        now: float,
        healable: int | None = None,
    ) -> Generation:
        """Returns the generation of `request`, which is complete unless its grammar or pattern is being compiled.

        Token healing takes back the last tokens of its prompt, `healable` at most.

        Raises:
            RequestError: the request is invalid. Nothing was admitted.
            OverloadedError: the queue is full, the request's key has used up its share, or no thread is available to
                compile its pattern.
            EngineStoppedError: after `close`.
        """
        if self._closed:
            raise EngineStoppedError("the engine has stopped")
        if request.sampling.token_healing:
            request = heal(request, self._tokenizer, limit=healable)
        if request.id in live:
            raise RequestError(f"a request with id {request.id!r} is running already", param="id")
        self._places.check(tenant_of(request.namespace), num_tokens=len(request.prompt))
        if request.tree is not None and not self.trees:
            raise RequestError("this engine takes no trees of tokens", param="tree")
        generation = self._generation(request, listener, now)
        if request.grammar is None:
            generation.matcher = self._healer.after(request.prefix, None) if request.prefix else None
        if request.grammar is not None or request.sampling.stop_regex is not None:
            self.compiling[request.id] = compiling = self._compile(request)
            for future in compiling.futures:
                future.add_done_callback(lambda _: self._wake())
        self._counters.requests += 1
        self._places.take(generation.sequence.tenant, generation.sequence.num_prompt)
        return generation

    def _generation(self, request: Request, listener: Listener, now: float) -> Generation:
        max_tokens = _check_request(request, self._info)
        params, num_prompt = request.sampling, len(request.prompt)
        tree = None if request.tree is None else TreeLayout(num_prompt, request.tree)
        sequence = Sequence(
            id=request.id,
            tokens=list(request.prompt),
            num_prompt=num_prompt,
            standing=Standing(
                arrival=self._counters.requests,
                priority=request.priority,
                deadline=math.inf if request.timeout_s is None else now + request.timeout_s,
            ),
            namespace=request.namespace,
            limit=num_prompt + max_tokens,
            score=None if request.score_from is None else Scoring(request.score_from, tree),
        )
        detokenizer = Detokenizer(
            self._tokenizer,
            stop=params.stop_strings,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            num_hidden_bytes=len(request.prefix),
            at_end=not request.stream,
        )
        terms = Terms(
            max_tokens,
            seed=params.seed if params.seed is not None else derive(self._seed, self._counters.requests + 1),
            eos_ids=self._eos_ids,
            ends=self._eos_ids.union(params.stop_token_ids),
        )
        return Generation(request, sequence, detokenizer, terms, listener, now)

    def _compile(self, request: Request) -> Compiling:
        spec, stop_regex, tenant = request.grammar, request.sampling.stop_regex, tenant_of(request.namespace)
        try:
            pattern = None if stop_regex is None else self._patterns.compile(stop_regex, tenant)
            return Compiling(None if spec is None else self._grammars.submit(spec, tenant), pattern)
        except (TypeError, ValueError) as error:  # text that is not Unicode, for one
            message = f"the constraint cannot be read: {cut(str(error))}"
            raise RequestError(message, code="invalid_grammar", param="grammar") from error

    def compiled(self, live: Mapping[str, Generation], now: float) -> Iterator[tuple[Generation, RequestOutput | None]]:
        """Yields the generations that no longer wait for a compilation, each with its terminal event if that failed or
        took too long."""
        for request_id, compiling in list(self.compiling.items()):
            generation = live.get(request_id)
            if generation is None:  # a listener ended it on hearing that another one ended
                continue
            if not compiling.done:
                if now >= generation.sequence.standing.deadline:
                    yield generation, generation.expire(now)
                continue
            del self.compiling[request_id]
            ended: RequestOutput | None = None
            try:
                self._equip(generation, compiling)
            except GrammarError as error:
                param = "grammar" if error.code in REFUSALS else None
                info = ErrorInfo(code=error.code, message=str(error), param=param)
                ended = generation.end(now, "error", info)
            except RequestError as error:
                ended = generation.end(now, "error", to_info(error))
            except Exception:
                logger.exception("a constraint could not be compiled")
                info = ErrorInfo(code="internal_error", message="the constraint could not be compiled")
                ended = generation.end(now, "error", info)
            yield generation, ended

    def _equip(self, generation: Generation, compiling: Compiling) -> None:
        """Sets a generation's matcher and stop pattern from its compilations. Raises GrammarError or RequestError."""
        request = generation.request
        if compiling.pattern is not None:
            generation.stop_at(PatternSearch(outcome(compiling.pattern), self._patterns.budget(request.namespace)))
        if compiling.grammar is not None:
            grammar = outcome(compiling.grammar)
            generation.check.receipt = grammar.receipt
            matcher = grammar.matcher()
            generation.matcher = self._healer.after(request.prefix, matcher) if request.prefix else matcher

    def drop(self, generation: Generation) -> None:
        """Forgets a request that has ended; abandons its compilations unless another request waits for them."""
        self._places.give_back(generation.sequence.tenant, generation.sequence.num_prompt)
        dropped = self.compiling.pop(generation.request.id, None)
        if dropped is None:
            return
        grammar, pattern = dropped.grammar, dropped.pattern
        if grammar is not None and all(other.grammar is not grammar for other in self.compiling.values()):
            self._grammars.abandon(grammar)
        if pattern is not None and all(other.pattern is not pattern for other in self.compiling.values()):
            self._patterns.abandon(pattern)

    def close(self) -> None:
        """Refuses all further requests."""
        self._closed = True
        self._patterns.close()

    @property
    def any_compiled(self) -> bool:
        return any(compiling.done for compiling in self.compiling.values())


def _check_request(request: Request, info: ModelInfo) -> int:
    """Returns the most tokens that `request` may generate; 0 if its prompt is scored.

    Raises:
        RequestError: the request cannot run on this model.
    """
    if not request.prompt:
        raise RequestError("the prompt is empty", code="empty_prompt", param="prompt")
    if min(request.prompt) < 0 or max(request.prompt) >= info.vocab_size:
        message = f"a token id of the prompt is not in 0 .. {info.vocab_size - 1}"
        raise RequestError(message, code="invalid_token_id", param="prompt")
    if request.timeout_s is not None and math.isnan(request.timeout_s):
        raise RequestError("timeout_s must be a number of seconds, got nan", param="timeout_s")
    length, limit = len(request.prompt), info.max_request_tokens
    params = request.sampling
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
        if not all(0 <= token < info.vocab_size for token in ids):
            message = f"a token id of {name} is not in 0 .. {info.vocab_size - 1}"
            raise RequestError(message, code="invalid_token_id", param=name)
    if request.tree is not None:
        _check_tree(request, info)
    elif request.score_from is not None and not 1 <= request.score_from < length:
        raise RequestError(f"score_from must be in 1 .. {length - 1}, got {request.score_from}", param="score_from")
    if request.score_from is not None:
        wanted = 0
    else:
        wanted = params.max_tokens if params.max_tokens is not None else limit - length
        if params.max_tokens == 0:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
    if length + wanted > limit or (request.score_from is None and wanted < 1):
        message = f"the prompt has {length} tokens and max_tokens is {wanted}, but {limit} in all is the limit"
        raise RequestError(message, code="context_length_exceeded", param="prompt")
    return wanted


def _check_tree(request: Request, info: ModelInfo) -> None:
    tree, length = request.tree, len(request.prompt)
    assert tree is not None
    first = length - len(tree.parents)
    if request.score_from is None or request.score_from != max(first, 1) or first < 0:
        raise RequestError("score_from must be where the tree begins", param="score_from")
    if not all(-1 <= parent < first + index for index, parent in enumerate(tree.parents)):
        raise RequestError("each parent must come before its child", param="tree")
    if len(tree.targets) != length + 1 - request.score_from or not all(tree.targets):
        raise RequestError("each token from score_from - 1 on needs targets", param="tree")
    if not all(0 <= token < info.vocab_size for targets in tree.targets for token in targets):
        message = f"a token id of the tree's targets is not in 0 .. {info.vocab_size - 1}"
        raise RequestError(message, code="invalid_token_id", param="tree")
