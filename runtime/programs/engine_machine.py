"""The machine of programs beside an engine: appends tokens to branches, and submits requests for their values."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.engine import Engine
from ..protocol.errors import BoughError, EngineError, ErrorInfo, RequestError, to_info
from ..protocol.program import Gen, Select, Use
from ..tokenizer.pipeline import LONG_TEXT
from ..tools.registry import ToolRunner
from .costs import COPIED_PER_WORK, ENCODED_PER_WORK, MESSAGES_PER_WORK, Budget, engine_budget
from .encoding import Encodings, KnownTexts
from .interpreter import Post
from .machine import Frame
from .model_calls import ModelCalls
from .state import Branch, Run, State
from .tokens import TokenContent, append_tokens, close_message, content_of, knows_turns, open_message
from .tool_calls import ToolUses

MAX_CHOICE_CHARS = 1 << 17
"""Characters of all choices of a select: they are encoded in one go."""


class EngineMachine:
    """`Machine` over an engine. Lives in its thread. Without `post` and `runner` there are no tools."""

    def __init__(
        self, engine: Engine, clock: Callable[[], float], *, post: Post | None = None, runner: ToolRunner | None = None
    ) -> None:
        self._engine = engine
        self._tokenizer = engine.tokenizer
        # A text that is longer fits into no context. Some tokenizers write a few characters as one, hence the 4.
        longest = max((len(text) for text in engine.tokenizer.token_bytes if text is not None), default=1)
        self._token_chars = 4 * longest
        self._max_tokens = engine.info.max_request_tokens
        self._calls = ModelCalls(engine, clock)
        self._known = KnownTexts()
        self._encodings = None if post is None else Encodings(engine.tokenizer, post, self._append_tokens)
        self._tools: ToolUses | None = None
        if runner is not None and post is not None:
            self._tools = ToolUses(runner, post, clock, self._append_returned)

    @property
    def budget(self) -> Budget:
        return engine_budget()

    @property
    def calls_tools(self) -> bool:
        return self._tools is not None

    def expire(self) -> None:
        """Fails the tool calls whose time is over."""
        if self._tools is not None:
            self._tools.expire()

    def sleep_s(self) -> float | None:
        """Seconds until `expire` has something to do; None: there is nothing to wait for."""
        return None if self._tools is None else self._tools.sleep_s()

    def close(self) -> None:
        if self._encodings is not None:
            self._encodings.close()

    def blank(self) -> TokenContent:
        return TokenContent()

    def room(self, branch: Branch) -> float:
        return self._token_chars * max(self._max_tokens - branch.content.length, 0)

    def append_text(self, frame: Frame, text: str) -> None:
        tokens = self._known.find(frame.state.namespace, text)
        if tokens is None and len(text) > LONG_TEXT and self._encodings is not None:
            self._encodings.begin(frame, text)
            return
        if tokens is None:
            tokens = self._tokenizer.encode(text)
            self._known.keep(frame.state.namespace, text, tokens)
        append_tokens(frame.branch, text, tokens, self._tokenizer)

    def open_message(self, frame: Frame, role: str) -> None:
        """After a join the template has not been asked for the messages that were appended."""
        content = content_of(frame.branch)
        while not knows_turns(content, self._tokenizer):
            frame.spend(1 + len(content.roles) // MESSAGES_PER_WORK)
            frame.pause()
        open_message(frame.branch, role, self._tokenizer)
        frame.spend(len(content.roles) // MESSAGES_PER_WORK)

    def close_message(self, frame: Frame) -> None:
        close_message(frame.branch, self._tokenizer)

    def call(self, frame: Frame) -> None:
        op, copies = frame.op, frame.branch.content.length // COPIED_PER_WORK
        if isinstance(op, Gen):
            frame.spend(op.sampling.n * copies)
        elif isinstance(op, Select):
            num_chars = sum(map(len, op.choices))
            if num_chars > MAX_CHOICE_CHARS:
                message = f"the choices of a select have {num_chars} characters, but {MAX_CHOICE_CHARS} is the limit"
                raise RequestError(message, param="choices")
            num_prompts = 1 if self._engine.takes_trees else len(op.choices)
            frame.spend(len(op.choices) + num_chars // ENCODED_PER_WORK + num_prompts * copies)
        self._calls.begin(frame)

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        assert self._tools is not None and isinstance(frame.op, Use)
        self._tools.begin(frame, frame.op, arguments)

    def cancel(self, call_id: str) -> None:
        if self._tools is not None and self._tools.stop(call_id):
            return
        if self._encodings is not None and self._encodings.stop(call_id):
            return
        self._engine.abort(call_id)

    def check_length(self, branch: Branch) -> None:
        if branch.content.length > self._max_tokens:
            message = f"the branch has {branch.content.length} tokens, but {self._max_tokens} in all is the limit"
            raise RequestError(message, code="context_length_exceeded", param="ops")

    def forget(self, state: State, run: Run) -> None:
        if run.program.trace:
            self._calls.send_unused(state, run)

    def describe(self, error: BoughError) -> ErrorInfo:
        return to_info(error)

    def _append_tokens(self, frame: Frame, text: str, tokens: list[int]) -> None:
        """Appends a long text, once it is encoded."""
        self._known.keep(frame.state.namespace, text, tokens)
        self._append_later(frame, text, tokens)

    def _append_returned(self, frame: Frame, op: Use, text: str) -> None:
        """Appends the text that a tool has returned, if its instruction says so."""
        if not op.append:
            return
        if len(text) > self._token_chars * self._max_tokens:
            message = f"the tool {op.tool!r} returned {len(text)} characters, which no context holds"
            raise EngineError(message, code="context_length_exceeded", param=op.tool)
        if text:
            self._append_later(frame, text, self._tokenizer.encode(text))

    def _append_later(self, frame: Frame, text: str, tokens: list[int]) -> None:
        num_tokens = frame.branch.content.length
        append_tokens(frame.branch, text, tokens, self._tokenizer)
        frame.state.add_tokens(frame.branch.content.length - num_tokens, frame.branch)
        self.check_length(frame.branch)
