"""A server's side of a comparison on programs: vLLM's or llama-cpp-python's, and the official `openai` client.

The server is a process of its own beside this one, which is the client: a task for each generation that can be begun.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Any

import openai  # in peers' own environments too

from .peer_walk import Answer, Call, Plan, gbnf, gbnf_of_choices, run_async

_START_S = 900.0
_TIMEOUT_S = 900.0
_LONGEST_CHOICE = 64  # tokens
_MODEL = "model"


class ServerClient:
    """`options`: client ("vllm" or "llama.cpp server"), model_file, tokenizer (a folder), threads, max_num_seqs,
    max_model_len, cache_gib.

    Raises:
        RuntimeError: the server did not start.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._is_vllm = options["client"] == "vllm"
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}/v1"
        command = _vllm(options, port) if self._is_vllm else _llama_cpp(options, port)
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

            return await run_async(plans, at_once, stop_s, answer)

    def _options(self, call: Call) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        options: dict[str, Any] = {"max_tokens": max(1, call.num_tokens), "extra_body": extra}
        if call.choices:
            options["max_tokens"] = _LONGEST_CHOICE
        if self._is_vllm:
            extra["add_special_tokens"] = False
            if call.choices or call.pattern is not None:
                wanted = {"choice": call.choices} if call.choices else {"regex": call.pattern}
                extra["structured_outputs"] = wanted
            else:
                extra["ignore_eos"] = True
        elif call.choices:
            extra["grammar"] = f"root ::= {gbnf_of_choices(call.choices)}"
        elif call.pattern is not None:
            extra["grammar"] = f"root ::= {gbnf(call.pattern)}"
        else:
            options["logit_bias"] = {str(token): -100 for token in self._ends}
        return options

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        with openai.OpenAI(
            base_url=self._url, api_key="-", max_retries=0, http_client=openai.DefaultHttpxClient(trust_env=False)
        ) as client:
            while True:
                try:
                    client.models.list(timeout=5.0)
                except openai.APIError:
                    if self._server.poll() is not None:
                        raise RuntimeError(f"the server ended with status {self._server.returncode}") from None
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"the server was not ready within {_START_S:.0f} s") from None
                    time.sleep(0.5)
                else:
                    return


def _vllm(options: dict[str, Any], port: int) -> list[str]:
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", options["model_file"], "--tokenizer", options["tokenizer"]]
    command += ["--served-model-name", _MODEL]
    command += ["--dtype", "bfloat16", "--enable-prefix-caching", "--max-num-seqs", str(options["max_num_seqs"])]
    return [*command, "--max-model-len", str(options["max_model_len"])]


def _llama_cpp(options: dict[str, Any], port: int) -> list[str]:
    command = [sys.executable, "-P", "-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", options["model_file"], "--model_alias", _MODEL, "--n_ctx", str(options["max_model_len"])]
    threads = str(options["threads"])
    return [*command, "--n_threads", threads, "--n_threads_batch", threads, "--verbose", "false"]


def _ends_of(model_file: str) -> list[int]:
    """The tokens that llama.cpp ends a text at."""
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only

    vocabulary = llama_cpp.Llama(model_file, vocab_only=True, verbose=False)
    pointer = llama_cpp.llama_model_get_vocab(vocabulary.model)
    return [token for token in range(vocabulary.n_vocab()) if llama_cpp.llama_vocab_is_eog(pointer, token)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
