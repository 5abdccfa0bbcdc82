"""An engine client that follows a script, and a tokenizer whose tokens are bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bough.constrain.receipt import Receipt
from bough.runtime.protocol.counters import EngineStats, ModelInfo
from bough.runtime.protocol.errors import EngineStoppedError, ErrorInfo
from bough.runtime.protocol.program import Delta, Done, Failed, Gen, Program, ProgramEvent, Value
from bough.runtime.protocol.request import SAMPLED, Finish, FinishReason, Request, RequestOutput, TokenLogprob, Usage
from bough.runtime.tools.registry import ToolCall, ToolRegistry

EOS = 256
VOCAB_SIZE = 49152
INFO = ModelInfo(
    name="tiny",
    path="tiny.gguf",
    architecture="bytes",
    vocab_size=VOCAB_SIZE,
    max_model_len=4096,
    max_request_tokens=4096,
    dtype="float32",
    device="cpu",
    num_parameters=0,
    page_size=1,
    num_pages=100,
)


@dataclass(frozen=True)
class FakeChat:
    source: str


class ByteTokenizer:
    """Token i < 256 is byte i; 256 is the end of sequence. A chat is `role: content` lines."""

    vocab_size = 257
    eos_ids = (EOS,)
    special_ids = frozenset({EOS})
    token_bytes: tuple[bytes | None, ...] = (*(bytes([value]) for value in range(256)), None)

    def __init__(self, *, template: str = "") -> None:
        self.chat = FakeChat(template)
        self.rendered: list[str] = []
        self.options: list[dict[str, Any]] = []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    encode_prompt = encode

    def fewest_tokens(self, text: str, most: int | None = None) -> int:
        return len(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_chars: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        names = ",".join(tool["function"]["name"] for tool in tools or ())
        text = f"[{names}]" if tools else ""
        text += "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        self.rendered.append(text)
        self.options.append(
            {
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "template_kwargs": template_kwargs,
            }
        )
        return self.encode(text)

    def pieces(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> list[bytes]:
        special = b"" if skip_special_tokens else b"<eos>"
        return [bytes([token]) if token < 256 else special for token in tokens]

    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [piece.decode(errors="replace") for piece in self.pieces(tokens, skip_special_tokens=False)]

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self.pieces(tokens, skip_special_tokens=skip_special_tokens)).decode(errors="replace")


@dataclass
class Script:
    """Outcome of a request, as the engine would have it.

    pieces    texts of the outputs, one each
    delay_s   before each
    refuse    raised instead of anything
    die       raised after the last piece
    receipt   of the constraint
    usage     told at the end; None: what was used
    """

    pieces: Sequence[str] = ("Hel", "lo")
    reason: FinishReason = "stop"
    matched: str | int | None = None
    cached_tokens: int = 3
    error: ErrorInfo | None = None
    delay_s: float = 0.0
    refuse: Exception | None = None
    die: Exception | None = None
    receipt: Receipt | None = None
    usage: Usage | None = None


@dataclass
class FakeClient:
    """`script` maps each request to what happens to it, `play` each program to its events, if it is given. Keeps what
    it was asked and which streams were left early. What is left early has `spent` so many tokens."""

    script: Callable[[Request], Script] = lambda _: Script()
    tokenizer: Any = field(default_factory=ByteTokenizer)
    info: ModelInfo = INFO
    alive: bool = True
    asked: list[Request] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    open_ids: set[str] = field(default_factory=set)
    registry: ToolRegistry = field(default_factory=ToolRegistry)
    aborted: list[str] = field(default_factory=list)
    play: Callable[[Program], Iterable[ProgramEvent]] | None = None
    dropped: list[str] = field(default_factory=list)
    spent: Usage = field(default_factory=Usage)
    num_flushes: int = 0
    closed: bool = False

    async def astream(
        self, request: Request, *, settle: Callable[[RequestOutput], None] | None = None
    ) -> AsyncIterator[RequestOutput]:
        self.asked.append(request)
        script = self.script(request)
        if script.refuse is not None:
            raise script.refuse
        self.open_ids.add(request.id)
        finished = died = False

        def end(finish: Finish, logprobs: tuple[TokenLogprob, ...] | None = None) -> RequestOutput:
            last = RequestOutput(id=request.id, logprobs=logprobs, finish=finish)
            if settle is not None:
                settle(last)
            return last

        try:
            if request.score_from is not None:
                logprobs = tuple(TokenLogprob(token, -2.0) for token in request.prompt[request.score_from :])
                finished = True
                finish = Finish(reason="length", usage=Usage(prompt_tokens=len(request.prompt)))
                yield end(finish, logprobs)
                return
            for index, piece in enumerate(script.pieces):
                await asyncio.sleep(script.delay_s)
                yield _output(request, piece, cached_tokens=None if index else script.cached_tokens)
            if script.die is not None:
                died = True
                raise script.die
            finished = True
            num_tokens = sum(len(piece.encode()) for piece in script.pieces)
            cached = script.cached_tokens
            used = Usage(prompt_tokens=len(request.prompt), cached_tokens=cached, completion_tokens=num_tokens)
            usage = used if script.usage is None else script.usage
            finish = Finish(
                reason=script.reason, usage=usage, matched=script.matched, error=script.error, constraint=script.receipt
            )
            yield end(finish)
        finally:
            self.open_ids.discard(request.id)
            if not finished:
                self.aborted.append(request.id)
                if not died:  # the engine tells of the end when the reader has gone
                    asyncio.get_running_loop().call_soon(end, Finish(reason="abort", usage=self.spent))

    async def arun(
        self,
        program: Program,
        tools: Mapping[str, ToolCall] | None = None,
        *,
        settle: Callable[[Done | Failed], None] | None = None,
    ) -> AsyncIterator[ProgramEvent]:
        self.programs.append(program)
        over = False
        try:
            for event in (self.play or _usual)(program):
                await asyncio.sleep(0)
                if isinstance(event, Done | Failed):
                    over = True
                    if settle is not None:
                        settle(event)
                yield event
        finally:
            if not over:
                self.aborted.append(program.id)
                if settle is not None:
                    settle(Failed(error=ErrorInfo(code="aborted", message="the program was dropped"), usage=self.spent))

    def stream(self, request: Request) -> Iterator[RequestOutput]:
        raise NotImplementedError

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        raise NotImplementedError

    @property
    def tools(self) -> Mapping[str, ToolCall]:
        return self.registry.tools

    def register_tool(self, tool: ToolCall) -> None:
        self.registry.register(tool)

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=2,
            waiting=1,
            num_pages=100,
            free_pages=50,
            cached_pages=40,
            locked_pages=10,
            finished_total={"stop": 3},
            prompt_tokens_total=200,
            cached_tokens_total=50,
        )

    def flush_cache(self) -> bool:
        self.num_flushes += 1
        return True

    def check(self) -> None:
        if not self.alive:
            raise EngineStoppedError("the engine has stopped")

    def close(self, *, at_once: bool = False) -> None:
        self.closed = True


def _usual(program: Program) -> Iterator[ProgramEvent]:
    for op in program.ops:
        if isinstance(op, Gen):
            yield Delta(op.branch, op.name, "4")
            yield Value(branch=op.branch, name=op.name, text="42", usage=Usage(completion_tokens=2))
    yield Done(requests=1, texts={0: "6 * 7 = 42"})


def _output(request: Request, piece: str, *, cached_tokens: int | None) -> RequestOutput:
    tokens = tuple(piece.encode())
    logprobs = None
    if (count := request.sampling.logprobs) is not None:
        logprobs = tuple(TokenLogprob(token, -0.5, ((token, -0.5), (0, float("-inf")))[:count]) for token in tokens)
    return RequestOutput(
        id=request.id,
        text=piece,
        tokens=tokens,
        origins=(SAMPLED,) * len(tokens),
        logprobs=logprobs,
        cached_tokens=cached_tokens,
    )
