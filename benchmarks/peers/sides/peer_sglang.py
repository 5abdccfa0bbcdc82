"""SGLang's frontend language as a client of bough's server: shows the gain of running programs in the engine.

Its client of OpenAI's API supports neither choices of a local model nor regular expressions; this one uses the server's
extensions for both, over persistent connections.
"""

from __future__ import annotations

import gc
import http.client
import json
import threading
import time
from typing import Any

import sglang  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
from sglang.lang.backend.base_backend import BaseBackend  # type: ignore[import-not-found,unused-ignore]
from sglang.lang.chat_template import get_chat_template  # type: ignore[import-not-found,unused-ignore]

from .peer_walk import Plan, echoed_scores, replay, values_of

_OK = 200


@sglang.function  # type: ignore[untyped-decorator,unused-ignore]
def program(s: Any, plan: Any) -> Any:
    """A plan as a program by hand would say it. Its branches."""

    def gen(name: str, num_tokens: int, pattern: str | None) -> Any:
        return sglang.gen(name, max_tokens=num_tokens, temperature=0, regex=pattern, ignore_eos=pattern is None)

    return replay(plan, s, gen=gen, select=sglang.select, fork=lambda state, count: state.fork(count))


class Server(BaseBackend):  # type: ignore[misc,unused-ignore]
    """Our server, by its API of completions."""

    def __init__(self, host: str, port: int, model: str) -> None:
        super().__init__()
        self._address = (host, port)
        self._model = model
        self._local = threading.local()

    def get_chat_template(self) -> Any:
        return get_chat_template("chatml")

    def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"max_tokens": sampling_params.max_new_tokens, "ignore_eos": sampling_params.ignore_eos}
        if sampling_params.regex is not None:
            body["regex"] = sampling_params.regex
        answer = self._post({"prompt": s.text_, "temperature": 0, **body})
        return answer["choices"][0]["text"], answer["usage"]

    def select(self, s: Any, choices: list[str], temperature: float, choices_method: Any) -> Any:
        prompts = [s.text_ + choice for choice in choices]
        answer = self._post({"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0})
        scores = echoed_scores(len(s.text_), answer)
        best = max(range(len(choices)), key=scores.__getitem__)
        decision = sglang.lang.choices.ChoicesDecision
        return decision(decision=choices[best], meta_info={"scores": scores})

    def _post(self, body: dict[str, Any]) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(*self._address)
        connection = self._local.connection
        content = json.dumps({"model": self._model, **body})
        connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != _OK:
            raise RuntimeError(answer["error"]["message"])
        return answer


class SglangClient:
    """`options`: host, port and model of our server."""

    def __init__(self, options: dict[str, Any]) -> None:
        sglang.global_config.enable_precache_with_tracing = False  # plans cannot be traced with made-up arguments
        self._backend = Server(options["host"], options["port"], options["model"])

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        gc.disable()  # what it collects while a thread begins asks whether threads live, and CPython 3.11 hangs
        try:
            return self._run(plans, at_once)
        finally:
            gc.enable()

    def _run(self, plans: list[Plan], at_once: int) -> dict[str, Any]:
        started = time.perf_counter()
        states = program.run_batch(
            [{"plan": plan} for plan in plans], backend=self._backend, num_threads=at_once, progress_bar=False
        )
        programs = []
        for plan, state in zip(plans, states, strict=True):
            if (error := state.error()) is not None:
                raise RuntimeError(str(error))
            programs.append([[branch, name, state.ret_value[branch][name], None] for branch, name in values_of(plan)])
        seconds = time.perf_counter() - started
        for state, values in zip(states, programs, strict=True):
            for value in values:
                usage = state.ret_value[value[0]].get_meta_info(value[1]) or {}
                value[3] = usage.get("completion_tokens")
        return {"seconds": seconds, "programs": programs}


class RandomSglangEngine:
    """SGLang's own engine on a GPU. `options`: model_file (a folder with config.json), max_model_len, max_num_seqs,
    kv_tokens."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._engine = sglang.Engine(
            model_path=options["model_file"],
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            context_length=options["max_model_len"],
            max_running_requests=options["max_num_seqs"],
            max_total_tokens=options["kv_tokens"],
            mem_fraction_static=0.85,
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = {"max_new_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
        results = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [result["output_ids"] for result in results]
