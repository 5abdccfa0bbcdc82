"""Messages to and from a worker process: MessagePack frames, each preceded by its length in 4 bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..errors import REFUSALS, GrammarError, UnsupportedKeywordError
from ..lowered import Lowered, Tabulate
from ..receipt import Violation
from ..regex.automaton import Automaton
from ..spec import Choice, Gbnf, JsonSchema, Lark, Regex

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 << 20


class Limits(msgspec.Struct, frozen=True, tag="limits"):
    """First message: the limits of one job. Beyond twice the processor time the process ends by itself."""

    memory_bytes: int
    seconds: float


class Lower(msgspec.Struct, frozen=True, tag="lower"):
    """Asks for a constraint to be lowered to a grammar. Answer: Lowered."""

    spec: JsonSchema | Regex | Choice | Lark | Gbnf


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Asks for the faults of a finished value; `formats` are those to check. Answer: Checked."""

    schema: str
    text: str
    formats: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process is ready for jobs."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    lowered: Lowered


class Checked(msgspec.Struct, frozen=True, tag="checked"):
    violations: list[Violation]


class Tabulated(msgspec.Struct, frozen=True, tag="tabulated"):
    automaton: Automaton


class Interrupted(msgspec.Struct, frozen=True, tag="interrupted"):
    """The job was interrupted before it was done."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A GrammarError. `code` gives its class."""

    code: str
    reason: str
    path: str = ""
    keyword: str = ""

    def error(self) -> GrammarError:
        """The error as it was raised."""
        kind = REFUSALS.get(self.code, GrammarError)
        error = kind.__new__(kind)
        GrammarError.__init__(error, self.reason, path=self.path)
        if isinstance(error, UnsupportedKeywordError):
            error.keyword = self.keyword
        return error

    @classmethod
    def of(cls, error: GrammarError) -> Refused:
        return cls(error.code, error.reason, error.path, getattr(error, "keyword", ""))


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An internal error, with its traceback."""

    traceback: str


Job = Lower | Check | Tabulate
Answer = Done | Checked | Tabulated | Interrupted | Refused | Failed
ToWorker = Limits | Job
FromWorker = Ready | Answer


def frame(message: msgspec.Struct) -> bytes:
    """Encodes `message` as a frame. Raises ValueError if it is too large or holds text that is not Unicode."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"a message has {len(data)} bytes, at most {MAX_FRAME_BYTES} are possible")
    return len(data).to_bytes(HEADER_BYTES, "little") + data


MAX_SMALL_CHARS = 512
MAX_SMALL_DEPTH = 16

_SMALL_KEYWORDS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"type", "enum", "const", "properties", "required", "items", "minimum", "maximum", "additionalProperties"}
)
"""Keywords that concern one place each, so that lowering a schema of them takes time in proportion to its size."""


def is_small(spec: JsonSchema | Regex | Choice | Lark | Gbnf) -> bool:
    """Returns True if lowering `spec` is certain to take almost no time."""
    match spec:
        case JsonSchema(schema=text):
            return len(text) <= MAX_SMALL_CHARS and _is_small_schema(text)
        case Choice(options=options):
            return sum(map(len, options)) <= MAX_SMALL_CHARS
        case Regex(pattern=text) | Lark(grammar=text):
            return len(text) <= MAX_SMALL_CHARS
        case Gbnf():  # finding clashes of its terminals takes a search, which a few repetitions make long
            return False


def _is_small_schema(text: str) -> bool:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return True  # it is refused at once
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, dict):
            if depth > MAX_SMALL_DEPTH or not node.keys() <= _SMALL_KEYWORDS:
                return False
            properties = node.get("properties")
            children = list(properties.values()) if isinstance(properties, dict) else []
            children += [node.get("items"), node.get("additionalProperties")]
            stack.extend((child, depth + 1) for child in children)
    return True
