"""A server's side of a comparison on programs: vLLM's or llama-cpp-python's, and the official `openai` client.

The server is a separate process. This one is the client, with a task for each generation that can begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from typing import Any

import openai  # in peers' own environments too

from .peer_walk import LONGEST_CHOICE, Answer, Call, Plan, gbnf, gbnf_of_choices, run

_START_S = 900.0
_TIMEOUT_S = 900.0
_MODEL = "model"


class ServerClient:
    """`options`: client ("vllm" or "llama.cpp server"), model_file, tokenizer (a folder), threads, max_num_seqs,
    max_model_len, cache_gib. Raises RuntimeError: the server did not start."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._is_vllm = options["client"] == "vllm"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/v1"
        command = _command(options, port, is_vllm=self._is_vllm)
        variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(options["cache_gib"]), "VLLM_NO_USAGE_STATS": "1"}
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=variables)
        self._wait()
        self._ends = [] if self._is_vllm else _ends_of(options["model_file"])

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        return asyncio.run(self._run(plans, at_once, stop_s))

    async def _run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=self._url, api_key="-", timeout=_TIMEOUT_S, max_retries=0, http_client=http
        ) as client:

            async def answer(call: Call) -> Answer:
                completion = await client.completions.create(
                    model=_MODEL, prompt=call.prompt, temperature=0, **self._options(call)
                )
                count = None if call.choices or completion.usage is None else completion.usage.completion_tokens
                return Answer(completion.choices[0].text, count)

            return await run(plans, at_once, stop_s, answer)

    def _options(self, call: Call) -> dict[str, Any]:
        extra: dict[str, Any] = {"add_special_tokens": False} if self._is_vllm else {}
        options: dict[str, Any] = {"max_tokens": LONGEST_CHOICE if call.choices else max(1, call.num_tokens)}
        if call.choices or call.pattern is not None:
            if self._is_vllm:
                extra["structured_outputs"] = {"choice": call.choices} if call.choices else {"regex": call.pattern}
            else:
                extra["grammar"] = f"root ::= {gbnf(call.pattern) if call.pattern else gbnf_of_choices(call.choices)}"
        elif self._is_vllm:
            extra["ignore_eos"] = True
        else:
            options["logit_bias"] = {str(token): -100 for token in self._ends}
        return options | {"extra_body": extra}

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        http = openai.DefaultHttpxClient(trust_env=False)
        with openai.OpenAI(base_url=self._url, api_key="-", max_retries=0, http_client=http) as client:
            while True:
                with contextlib.suppress(openai.APIError):
                    client.models.list(timeout=5.0)
                    return
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server ended (status {self._server.returncode}) or was not ready in time")
                time.sleep(0.5)


def _command(options: dict[str, Any], port: int, *, is_vllm: bool) -> list[str]:
    module = "vllm.entrypoints.openai.api_server" if is_vllm else "llama_cpp.server"
    flags = {"--host": "127.0.0.1", "--port": port, "--model": options["model_file"]}
    if is_vllm:
        flags |= {"--tokenizer": options["tokenizer"], "--served-model-name": _MODEL, "--dtype": "bfloat16"}
        flags |= {"--max-num-seqs": options["max_num_seqs"], "--max-model-len": options["max_model_len"]}
    else:
        flags |= {"--model_alias": _MODEL, "--n_ctx": options["max_model_len"], "--verbose": "false"}
        flags |= {"--n_threads": options["threads"], "--n_threads_batch": options["threads"]}
    words = [str(word) for flag in flags.items() for word in flag]
    return [sys.executable, "-P", "-m", module, *words, *(["--enable-prefix-caching"] if is_vllm else [])]


def _ends_of(model_file: str) -> list[int]:
    """The tokens that llama.cpp ends a text at."""
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only

    vocabulary = llama_cpp.Llama(model_file, vocab_only=True, verbose=False)
    pointer = llama_cpp.llama_model_get_vocab(vocabulary.model)
    return [token for token in range(vocabulary.n_vocab()) if llama_cpp.llama_vocab_is_eog(pointer, token)]
