"""Chat templates: messages to the text format of a model. Only the template's own control tokens count as such."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, Unpack

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import regex

from ...constrain.errors import cut, quoted
from ..protocol.errors import ModelError, RequestError
from .sandbox import BoundedEnvironment, TemplateBudget, with_budget

MAX_RENDERED_CHARS = 1 << 24
MAX_HISTORY = 1024
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

FALLBACK_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- message['role'] | capitalize + ':\\n' + message['content'] + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:\\n' -}}{%- endif -%}
"""
"""For models that have no template (base models): each message is its role, a colon, a line break, its content and an
empty line. Role names end in a line break rather than a space, because a space belongs to the word that follows it."""

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "documents"})
_CACHED_TURNS = 4096
_MAX_DATE_CHARS, _MAX_DATE_FORMATS = 1000, 16
# Exceptions of rendering: a template is a program, so these are all that expressions can raise.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
_PRIVATE_USE = range(0xE000, 0xF900)


class RolePieces(NamedTuple):
    """Texts that the template puts before and after a message's content, in which control tokens count."""

    prefix: str
    suffix: str


NO_PIECES = RolePieces("", "")


class Dates:
    """The moment that dates a chat, for templates that show it: all messages of a chat show the same."""

    def __init__(self) -> None:
        self._moment = datetime.now()  # local, as templates expect
        self._shown: set[str] = set()

    def show(self, pattern: str) -> str:
        if len(pattern) > _MAX_DATE_CHARS:
            raise jinja2.TemplateError(f"a date format may have at most {_MAX_DATE_CHARS} characters")
        if len(self._shown) < _MAX_DATE_FORMATS:
            self._shown.add(pattern)
        return self._moment.strftime(pattern)

    @property
    def current(self) -> bool:
        """True while a chat that begins now would show the same."""
        now = datetime.now()
        return all(now.strftime(pattern) == self._moment.strftime(pattern) for pattern in tuple(self._shown))


class Turn:
    """The last of `depth` messages of certain roles, with the template's text around it. A node in a tree of orders.

    It keeps all nodes `before` it alive. The root, of no message, has neither a role nor pieces, but new `dates`.
    """

    __slots__ = ("before", "dates", "depth", "following", "pieces", "role")

    def __init__(self, before: Turn | None = None, role: str = "", pieces: RolePieces = NO_PIECES) -> None:
        self.before = before
        self.role = role
        self.pieces = pieces
        self.depth: int = 0 if before is None else before.depth + 1
        self.dates: Dates = Dates() if before is None else before.dates
        self.following: dict[str, Turn] = {}

    @property
    def start(self) -> Turn:
        """The root."""
        turn = self
        while turn.before is not None:
            turn = turn.before
        return turn

    def path(self) -> list[Turn]:
        """Returns all turns up to this one, without the root."""
        turns: list[Turn] = []
        turn = self
        while turn.before is not None:
            turns.append(turn)
            turn = turn.before
        return turns[::-1]


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatOptions(TypedDict, total=False):
    """Options of `ChatTemplate.pieces`."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: Mapping[str, Any] | None
    documents: Sequence[Mapping[str, str]]


class ChatTemplate:
    """A compiled chat template. Immutable except for its cache; safe to use from many threads.

    The template comes with the model, never with a request; still, rendering is sandboxed, and limited in size,
    processor time and memory: see sandbox.TemplateBudget.

    Raises:
        ModelError: the template is not valid Jinja, or too long.
    """

    def __init__(
        self,
        source: str,
        *,
        control: ControlTokens | None = None,
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        self.source = source
        self._control = control or ControlTokens({})
        self._names = {token: text for text, token in self._control.ids.items()}
        self._globals = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().compile_bounded(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template is not valid: {error}") from error
        self._start = Turn()
        self._num_turns = 0

    @property
    def start(self) -> Turn:
        """The beginning of a chat that begins now."""
        if not self._start.dates.current:
            self._start, self._num_turns = Turn(), 0
        return self._start

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> str:
        """Returns the text of a chat, like `pieces` but with control tokens spelled out."""
        return self.spell(self.pieces(messages, **options))

    def split(self, text: str) -> list[str | int]:
        """Returns a template's text as pieces."""
        return self._control.split(text)

    def spell(self, pieces: Iterable[str | int]) -> str:
        """Returns the text of pieces, with control tokens spelled out."""
        return "".join(piece if isinstance(piece, str) else self._names[piece] for piece in pieces)

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        documents: Sequence[Mapping[str, str]] = (),
    ) -> list[str | int]:
        """Returns the rendered chat as pieces of plain text and ids of the template's control tokens.

        Whatever messages, tools, documents and `template_kwargs` contain is plain text, control tokens' texts included.
        `continue_final_message` ends the text with the last message's content (and implies no generation prompt).

        Raises:
            RequestError: the messages are malformed, or the template refuses them.
        """
        extra = _checked_kwargs(template_kwargs)
        try:
            known = [_normalised(message) for message in messages]  # first: parsing JSON undoes its escapes
            shield = Shield(self._control, (known, tools, extra, documents))
            chat = shield.hide(known)
            end = _mark_end(chat) if continue_final_message else None
            context = {**shield.hide(extra), "messages": chat, "tools": shield.hide(tools) if tools else None}
            if documents:
                context["documents"] = shield.hide(list(documents))
        except RecursionError as error:
            raise RequestError("messages are nested too deeply", param="messages") from error
        text = self._render(context, add_generation_prompt=add_generation_prompt and end is None)
        if end is not None:
            if end not in text:
                raise RequestError(
                    "the chat template leaves out the final message, so it cannot be continued", param="messages"
                )
            text = text[: text.rindex(end)]
        return shield.split(text)

    def role_pieces(self, history: tuple[str, ...], role: str, *, known: Turn | None = None) -> RolePieces:
        """Returns the template's text around a new message of `role` after messages of the roles in `history`.

        `known` is the turn of the first messages in `history`, which need not be rendered once more.

        The assistant's prefix is the text of a generation prompt. A system message that the template moves into the
        next message has its pieces split at its content.

        Raises:
            RequestError: the template refuses this order of roles, or does not let a message be appended.
        """
        if len(history) >= MAX_HISTORY:
            raise _too_long()
        turn = self.start if known is None or known.depth > len(history) else known
        for each in (*history[turn.depth :], role):
            turn = self.after(turn, each)
        return turn.pieces

    def after(self, turn: Turn, role: str) -> Turn:
        """Returns the message of `role` after `turn`. At the first request it renders all messages up to it.

        Raises:
            RequestError: see `role_pieces`.
        """
        found = turn.following.get(role)
        if found is None:
            if turn.depth >= MAX_HISTORY:
                raise _too_long()
            path = turn.path()
            roles = (*(each.role for each in path), role)
            pieces = self._find_pieces(tuple(each.pieces for each in path), roles, turn.dates)
            found = turn.following[role] = Turn(turn, role, pieces)
            self._num_turns += 1
            if self._num_turns > _CACHED_TURNS:  # those in use are kept by their holders
                self._start, self._num_turns = Turn(), 0
        return found

    def around(
        self, roles: Sequence[str], *, tools: Sequence[Mapping[str, Any]] = (), dates: Dates | None = None
    ) -> list[list[str | int]] | None:
        """Returns the template's text before each message's content, and finally before an answer, as `pieces`; None if
        it does not show all of them in this order. `tools` are shown to the model.

        Raises:
            RequestError: the template refuses this order of roles.
        """
        shield = Shield(self._control, (tools,))
        shown = shield.hide(list(tools)) or None
        gaps = self._gaps(tuple(roles), dates or self.start.dates, add_generation_prompt=True, tools=shown)
        return None if gaps is None else [shield.split(gap) for gap in gaps]

    def after_calls(
        self, roles: Sequence[str], results: Sequence[tuple[str, str]], *, known: Turn | None = None
    ) -> list[str | int] | None:
        """Returns the template's text from the end of an assistant's calls, after messages of `roles`, to the beginning
        of its next answer: the results, by the names of the tools, as messages. None if it shows no results. `known` is
        the turn of the assistant's message, if there is one.
        """
        mark, call_id = "\ue0bb", "call00001"
        call = {"name": results[0][0], "arguments": {"value": mark}}
        shield = Shield(self._control, (results, [mark]))
        messages = [{"role": role, "content": f"({index})"} for index, role in enumerate(roles)]
        calls = [{"id": call_id, "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})  # type: ignore[dict-item]
        shown = [shield.hide(text) for _, text in results]
        messages += [
            {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}
            for (name, _), text in zip(results, shown, strict=True)
        ]
        try:
            suffix = self.role_pieces(tuple(roles), "assistant", known=known and known.before).suffix
            dates = (known or self.start).dates
            text = self._render({"messages": messages, "tools": None}, add_generation_prompt=True, dates=dates)
        except RequestError:
            return None
        _, found, rest = text.rpartition(mark)
        start = rest.find(suffix.strip())
        whole = all(text.strip() in rest or json.dumps(text, ensure_ascii=False)[1:-1] in rest for text in shown)
        if not found or not suffix.strip() or start < 0 or not whole:
            return None
        return shield.split(rest[start:])

    def _find_pieces(self, before: tuple[RolePieces, ...], roles: tuple[str, ...], dates: Dates) -> RolePieces:
        """Finds the pieces of the last of `roles`, given those of the messages before it."""
        last = len(roles) - 1
        gaps = self._gaps(roles, dates)
        if gaps is None and roles[-1] in ("system", "developer"):  # it may be part of the next message, the user's
            gaps = self._gaps((*roles, "user"), dates)
            gaps = gaps and [*gaps[: last + 1], ""]
        if gaps is None:
            raise RequestError(
                f"the chat template does not render a message of role {roles[-1]!r} after {roles[:-1]}",
                param="messages",
            )
        for index in range(last):
            previous = before[index - 1].suffix if index else ""
            # An earlier answer may be shown without its reasoning, so only the text before a user's message must agree.
            same = gaps[index] == previous + before[index].prefix or roles[index] == "assistant"
            if not same or not gaps[index + 1].startswith(before[index].suffix):
                raise RequestError(
                    f"the chat template rewrites earlier messages when one of role {roles[-1]!r} follows {roles[:-1]}, "
                    "so it cannot be appended",
                    param="messages",
                )
        written = before[-1].suffix if before else ""
        prefix = gaps[last].removeprefix(written)
        if roles[-1] == "assistant":
            prefix = self._generation_prompt(roles[:-1], dates, written, prefix)
        return RolePieces(prefix, gaps[last + 1])

    def _generation_prompt(self, history: tuple[str, ...], dates: Dates, written: str, shown: str) -> str:
        """Returns the text of a generation prompt after `history`; `shown` is the text before an existing answer."""
        try:
            gaps = self._gaps(history, dates, add_generation_prompt=True)
        except RequestError:
            if history:
                raise
            return shown  # many templates read the first message, and there is none
        if gaps is None or not gaps[-1].startswith(written):
            return shown
        prompt = gaps[-1].removeprefix(written)
        if not prompt and shown.strip():  # the template knows no generation prompt
            return shown
        return shown if not history and shown.endswith(prompt) else prompt

    def _gaps(
        self, roles: tuple[str, ...], dates: Dates, *, add_generation_prompt: bool = False, tools: object = None
    ) -> list[str] | None:
        """Returns the texts around the contents; None if a content is missing, moved or repeated."""
        contents = [f"\ue0bb{index}\ue0bb" for index in range(len(roles))]
        messages = [_normalised({"role": role, "content": text}) for role, text in zip(roles, contents, strict=True)]
        context = {"messages": messages, "tools": tools}
        text = self._render(context, add_generation_prompt=add_generation_prompt, dates=dates)
        gaps: list[str] = []
        for content in contents:
            gap, found, text = text.partition(content)
            if not found or "\ue0bb" in gap:
                return None
            gaps.append(gap)
        return None if "\ue0bb" in text else [*gaps, text]

    def _render(self, context: Mapping[str, Any], *, add_generation_prompt: bool, dates: Dates | None = None) -> str:
        chunks: list[str] = []
        num_chars = 0
        try:
            dated = {"strftime_now": (dates or Dates()).show}
            variables = {**dated, **self._globals, **context, "add_generation_prompt": add_generation_prompt}
            for chunk in self._template.generate(with_budget(variables, TemplateBudget())):
                num_chars += len(chunk)
                if num_chars > MAX_RENDERED_CHARS:
                    raise RequestError(f"the chat is longer than {MAX_RENDERED_CHARS} characters", param="messages")
                chunks.append(chunk)
        except RequestError:
            raise
        except _RENDER_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise RequestError(f"the chat template refused the messages: {cut(reason)}", param="messages") from error
        return "".join(chunks)


def _too_long() -> RequestError:
    return RequestError(f"a chat may have at most {MAX_HISTORY} messages", param="messages")


def _environment() -> BoundedEnvironment:
    """Returns the environment that published templates expect: its settings are part of their meaning."""
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.bind_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _checked_kwargs(template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    extra = dict(template_kwargs or {})
    for name in extra:
        if name in _RESERVED or not name.isidentifier():
            raise RequestError(f"chat_template_kwargs must not contain {quoted(name)}", param="chat_template_kwargs")
    return extra


def _normalised(message: Any) -> dict[str, Any]:
    """Returns a message in the form that templates expect: one string of content, and tool arguments as objects.

    Raises:
        RequestError: the message has no known role, or content that is not text.
    """
    if not isinstance(message, Mapping):
        raise RequestError("each message must be an object with role and content", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"role must be one of {', '.join(sorted(ROLES))}; got {role!r}", param="messages")
    result = dict(message)
    if "content" in message:
        result["content"] = _text_of(message["content"])
    if message.get("tool_calls"):
        result["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
    return result


def _text_of(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list | tuple) else [None]:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError("content must be a string or a list of parts of type text", param="messages")
        texts.append(text)
    return "\n".join(texts)


def _with_parsed_arguments(call: Any) -> Any:
    """Returns a tool call with its arguments, JSON text on the wire, as an object, which templates print."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _mark_end(chat: list[dict[str, Any]]) -> str:
    """Appends a mark to the last message's content, and returns the mark."""
    content = chat[-1].get("content") if chat else None
    if not isinstance(content, str):
        raise RequestError("continue_final_message needs a final message with text content", param="messages")
    mark = "\U000f0bb1"  # a private use character of another plane than the placeholders'
    while mark in content:
        mark += "\U000f0bb2"
    chat[-1]["content"] = content + mark
    return mark


# Control tokens


class ControlTokens:
    """Texts of a model's control tokens. Where one contains another, the longest wins.

    `strips_left` and `strips_right` name those that remove the white space before and after them.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        strips_left: Iterable[str] = (),
        strips_right: Iterable[str] = (),
    ) -> None:
        self.ids = {text: token for text, token in ids.items() if text}
        self._strips_left, self._strips_right = frozenset(strips_left), frozenset(strips_right)
        self._pattern = regex.compile(r"\L<names>" if self.ids else "(?!)", names=list(self.ids), ignore_unused=True)
        named = [text for text in self.ids if not text[0].isalnum()]
        self._beginnings = frozenset(text[:stop] for text in named for stop in range(1, len(text)))
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def split(self, text: str) -> list[str | int]:
        """Returns the text cut at control tokens: their ids, and the pieces between them (never empty)."""
        pieces: list[str | int] = []
        start, strip = 0, False
        for match in self._pattern.finditer(text):
            name = match.group()
            before = text[start : match.start()]
            before = before.lstrip() if strip else before
            before = before.rstrip() if name in self._strips_left else before
            pieces += [before, self.ids[name]] if before else [self.ids[name]]
            start, strip = match.end(), name in self._strips_right
        rest = text[start:].lstrip() if strip else text[start:]
        return [*pieces, rest] if rest else pieces

    def hide(self, text: str, mark: str, hidden: dict[str, int]) -> str:
        """Returns the text with control tokens' texts replaced by placeholders: numbers in `hidden` between marks.

        New texts are added to `hidden`. A prefix of a control token at the end of the text is hidden too, since a
        template may put more text there.
        """

        def placeholder(found: str) -> str:
            return f"{mark}{hidden.setdefault(found, len(hidden))}{mark}"

        pieces: list[str] = []
        start = 0
        for match in self._pattern.finditer(text):
            pieces += [text[start : match.start()], placeholder(match.group())]
            start = match.end()
        rest = text[start:]
        unfinished = self._unfinished(rest)
        pieces.append(rest[: len(rest) - unfinished])
        if unfinished:
            pieces.append(placeholder(rest[-unfinished:]))
        return "".join(pieces)

    def _unfinished(self, text: str) -> int:
        """Returns the length of the longest end of `text` that begins a control token, words excepted: too common."""
        lengths = range(min(self._longest_beginning, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._beginnings), 0)


class Shield:
    """Hides the control tokens that a user typed while a template is rendered, and puts them back as plain text.

    One shield serves one rendering: `hide` everything that goes into the template, render, `split` the result.
    """

    def __init__(self, control: ControlTokens, values: Iterable[Any]) -> None:
        self._control = control
        self._hidden: dict[str, int] = {}
        used = {char for value in values for text in _strings(value) for char in text if "\ue000" <= char <= "\uf8ff"}
        # With all 6,400 of them in use the first serves anyway: a text that imitates a placeholder stays plain text.
        self._mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), "\ue000")
        self._placeholder = regex.compile(f"{self._mark}([0-9]+){self._mark}")

    def hide(self, value: Any) -> Any:
        """Returns a copy of a JSON value in which no string holds a control token's text."""
        if isinstance(value, str):
            return self._control.hide(value, self._mark, self._hidden)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(entry) for entry in value]
        return value

    def split(self, text: str) -> list[str | int]:
        """Cuts a rendered text at the template's own control tokens; the users' are text again."""
        hidden = {str(number): found for found, number in self._hidden.items()}
        pieces = self._control.split(text)
        return [self._reveal(piece, hidden) if isinstance(piece, str) else piece for piece in pieces]

    def _reveal(self, text: str, hidden: Mapping[str, str]) -> str:
        """Returns the text with placeholders replaced by the texts of their numbers."""
        if self._mark not in text:
            return text
        restored: str = self._placeholder.sub(lambda match: hidden.get(match.group(1), match.group()), text)
        return restored


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)
