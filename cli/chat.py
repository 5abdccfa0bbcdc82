"""`bough chat`: a conversation in the terminal, streamed, with the whole history kept in the prefix cache."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import sys
import time

from ..runtime.client.local import LocalClient
from ..runtime.protocol.request import Finish, Request
from ..runtime.protocol.sampling_params import SamplingParams
from .options import add_engine_options, engine_config
from .progress import LoadingBar

_HELP = "/reset starts over   /system TEXT sets the system message   /stats shows counters   /quit (or Ctrl-D) leaves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=512, help="of one answer (default: %(default)s)")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = engine_config(arguments)
    with LoadingBar() as bar:
        client = LocalClient.load(config, bar)
    info = client.info
    print(f"{info.name} ({info.num_parameters / 1e6:.0f} M parameters, {info.dtype}, {info.device}). {_HELP}")
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # arrow keys and history at the prompt, where the system has it
    try:
        _talk(client, arguments)
    finally:
        client.close()
    return 0


def _talk(client: LocalClient, arguments: argparse.Namespace) -> None:
    system = arguments.system
    messages = _start(system)
    for number in itertools.count():
        try:
            line = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = _start(system)
        elif line.startswith("/system "):
            system = line.removeprefix("/system ")
            messages = _start(system)
        elif line == "/stats":
            print(client.stats())
        elif line.startswith("/"):
            print(_HELP)
        elif line:
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": _answer(client, messages, arguments, number)})


def _start(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] if system else []


def _answer(client: LocalClient, messages: list[dict[str, str]], arguments: argparse.Namespace, number: int) -> str:
    """Streams one answer to the terminal; Ctrl-C ends it."""
    prompt = client.tokenizer.encode_chat(list(messages))
    room = client.info.max_request_tokens - len(prompt)
    if room < 1:
        print(f"(the conversation has {len(prompt)} tokens, which is all the model can hold: /reset starts over)")
        return ""
    params = SamplingParams(max_tokens=min(arguments.max_tokens, room), temperature=arguments.temperature)
    started = time.monotonic()
    text, finish = "", None
    try:
        for output in client.stream(Request(id=f"chat-{number}", prompt=tuple(prompt), sampling=params)):
            print(output.text, end="", flush=True)
            text += output.text
            finish = output.finish
    except KeyboardInterrupt:
        print(" (stopped)")
    print()
    if finish is not None:
        _report(finish, time.monotonic() - started)
    return text


def _report(finish: Finish, seconds: float) -> None:
    if finish.error is not None:
        print(f"({finish.error.message})")
        return
    usage = finish.usage
    rate = usage.completion_tokens / seconds
    cached = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached"
    line = f"({usage.completion_tokens} tokens, {rate:.0f} tok/s; {cached})"
    print(f"\033[2m{line}\033[0m" if sys.stdout.isatty() else line)
