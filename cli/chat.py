"""`bough chat`: a conversation in the terminal, streamed, with the whole history kept in the prefix cache."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..lang.diagnostics.errors import ProgramError
from ..lang.state.conversation import Conversation
from ..lang.state.messages import ChatMessage
from ..lang.state.trimming import KeepLast
from ..runtime.checkpoints.fetch import user_path
from ..runtime.client.local import LocalClient
from ..runtime.protocol.errors import RequestError, printable, reason
from ..runtime.protocol.request import Finish, Request
from ..runtime.protocol.sampling_params import SamplingParams
from .parsing.options import add_engine_options, engine_config
from .parsing.parser import number, whole_number
from .progress import LoadingBar

_HELP = """\
/system TEXT  set the system message and start over     /save FILE  save the conversation to a file
/reset        start over                                /load FILE  continue a saved conversation
/stats        show the engine's counters                /quit       leave (or press Ctrl-D)"""

_SHARE_OF_ANSWER = 8
"""An eighth of the context, or what --max-tokens says if that is less, is kept free for the next answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="the system message of a new conversation")
    parser.add_argument(
        "--temperature", type=number, metavar="X", default=0.6, help="0 is greedy (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=whole_number, metavar="N", default=512, help="longest answer (default: %(default)s)"
    )
    parser.add_argument("--load", metavar="FILE", help="continue a conversation that /save wrote")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = engine_config(arguments)
    SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature
    )  # raises before a model is loaded
    if arguments.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, got {arguments.max_tokens}", param="max_tokens")
    loaded = _loaded(arguments.load) if arguments.load else None
    if loaded is not None and arguments.system is not None and "system" not in getattr(arguments, "sources", {}):
        raise RequestError("--system is for a new conversation: leave it out beside --load, or use /system later")
    with LoadingBar() as bar:
        client = LocalClient.load(config, bar)
    info = client.info
    print(f"{info.name} ({info.num_parameters / 1e6:.0f} M parameters, {info.described()})\n{_HELP}")
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # arrow keys and history at the prompt, where the system has it
    chat = Chat(client, arguments, loaded or Conversation(model=info.name))
    if loaded is not None:
        print(_told(loaded))
    if arguments.system and loaded is None:
        chat.reset(arguments.system)
    try:
        chat.talk()
    finally:
        client.close()
    return 0


def _load(path: Path) -> Conversation:
    """Reads a conversation. Raises OSError, or RequestError: it is none that can be chatted on."""
    loaded = Conversation.load(path)
    if loaded.is_open or any(message.role == "text" for message in loaded.messages):
        raise RequestError(f"{path} holds text outside of messages: continue it with a program, or choose another file")
    return loaded


def _loaded(path: str) -> Conversation:
    """The conversation that the command line names. Raises RequestError."""
    try:
        return _load(user_path(path))
    except OSError as error:
        raise RequestError(f"--load: {path} cannot be read ({reason(error)}): check the path") from error
    except RequestError as error:
        raise RequestError(f"--load: {error.message}") from error


class Chat:
    """A conversation with a model, until its user leaves."""

    def __init__(self, client: LocalClient, arguments: argparse.Namespace, conversation: Conversation) -> None:
        self.conversation = conversation
        self._client = client
        self._max_tokens: int = arguments.max_tokens
        self._temperature: float = arguments.temperature
        self._numbers = itertools.count()
        self._commands: dict[str, Callable[[str], None]] = {
            "/reset": lambda _: self.reset(),
            "/system": self._set_system,
            "/stats": lambda _: print(self._client.stats()),
            "/save": self._save,
            "/load": self._load,
        }

    def talk(self) -> None:
        """Reads lines and answers them."""
        while True:
            try:
                line = input("\n> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                word, _, rest = line.partition(" ")
                self._commands.get(word, _show_help)(rest.strip())
            elif line:
                self._say(line)

    def reset(self, system: str | None = None) -> None:
        """Forgets what was said, and the system message if there is another one."""
        messages = _system(self.conversation.messages) if system is None else [ChatMessage("system", system)]
        self.conversation = Conversation(messages, model=self._client.info.name)

    def _set_system(self, text: str) -> None:
        if text:
            self.reset(text)
        else:
            print("(which? /system TEXT)")

    def _save(self, name: str) -> None:
        self._with_file(name, "/save", self.conversation.save)

    def _load(self, name: str) -> None:
        def load(path: Path) -> None:
            loaded = _load(path)
            print(_told(loaded))
            self.conversation = Conversation(loaded.messages, loaded.values, model=self._client.info.name)

        self._with_file(name, "/load", load)

    def _with_file(self, name: str, command: str, act: Callable[[Path], None]) -> None:
        if not name:
            print(f"(which file? {command} FILE)")
            return
        path = user_path(name)
        try:
            act(path)
        except RequestError as error:
            print(f"({printable(error.message)})")
        except (OSError, ValueError) as error:  # ValueError: no name of a file, or a text that is no Unicode
            print(f"({printable(str(path))}: {reason(error)}: choose another file)")
        else:
            if command == "/save":
                print(f"(saved: bough chat --load {path})")

    def _say(self, line: str) -> None:
        """Answers a line, and remembers both; neither if there is no room for them, or the model's template refuses
        them."""
        before = self.conversation
        try:
            asked = self._fitted([*before.messages, ChatMessage("user", line)])
        except (RequestError, ProgramError) as error:
            print(f"(not sent: {printable(error.message)})")
            return
        if asked is not None:
            answer = self._answer(self._encoded(asked))
            self.conversation = before.replace([*asked, ChatMessage("assistant", answer)])

    def _fitted(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage] | None:
        """The messages with room for an answer; the oldest go if the user agrees. None: they are not sent."""
        limit = self._client.info.max_request_tokens
        most = limit - max(1, min(self._max_tokens, limit // _SHARE_OF_ANSWER))
        try:
            kept = KeepLast(max_tokens=most).kept(messages, lambda some: len(self._encoded(some)))
        except ProgramError:
            length = len(self._encoded([*_system(messages), messages[-1]]))
            print(f"(not sent: this message takes {length} of {limit} tokens: shorten it, or raise --max-model-len)")
            return None
        num_gone = len(messages) - len(kept)
        if num_gone:
            full = f"The context is full ({len(self._encoded(messages))} of {limit} tokens)."
            if not _agrees(f"{full} Drop the oldest {num_gone} messages?"):
                print("(not sent: /save FILE keeps the conversation, /reset starts over)")
                return None
        return kept

    def _encoded(self, messages: Sequence[ChatMessage]) -> list[int]:
        shown = [{"role": message.role, "content": message.content} for message in messages]
        return list(self._client.tokenizer.encode_chat(shown))

    def _answer(self, prompt: list[int]) -> str:
        """Streams one answer to the terminal; Ctrl-C ends it."""
        limit = self._client.info.max_request_tokens
        params = SamplingParams(max_tokens=min(self._max_tokens, limit - len(prompt)), temperature=self._temperature)
        request = Request(id=f"chat-{next(self._numbers)}", prompt=tuple(prompt), sampling=params)
        started, first = time.monotonic(), None
        text, finish = "", None
        try:
            for output in self._client.stream(request):
                first = first or time.monotonic()
                print(printable(output.text) if sys.stdout.isatty() else output.text, end="", flush=True)
                text += output.text
                finish = output.finish
        except KeyboardInterrupt:
            print(" (stopped)")
        print()
        if finish is not None and first is not None:
            _report(finish, time.monotonic() - started, first - started, limit)
        return text


def _system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns the system message, alone in a list, or an empty list."""
    return [message for message in messages[:1] if message.role == "system"]


def _told(loaded: Conversation) -> str:
    """Describes a conversation that was loaded."""
    return f"({len(loaded.messages)} messages{f', with {loaded.model}' if loaded.model else ''})"


def _show_help(_: str) -> None:
    print(_HELP)


def _agrees(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _report(finish: Finish, seconds: float, first_s: float, limit: int) -> None:
    """Prints what an answer took: time, and how much of the prompt the cache had and the context holds."""
    if finish.error is not None:
        print(f"({printable(finish.error.message)})")
        return
    usage = finish.usage
    rate = usage.completion_tokens / max(seconds, 1e-9)
    cached = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached"
    context = f"context {usage.prompt_tokens + usage.completion_tokens:,} of {limit:,}"
    line = f"({usage.completion_tokens} tokens, {rate:.0f} tok/s, first after {first_s:.2f} s; {cached}; {context})"
    print(f"\033[2m{line}\033[0m" if sys.stdout.isatty() else line)
