"""bough's side of a comparison: the engine on a thread of this process, as in scripts, with its defaults.

Prompts go to the engine as requests; programs are functions of the language, run by `run_batch`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from ....constrain.spec import GrammarSpec, JsonSchema
from ....lang import api
from ....lang.backends.local import LocalBackend
from ....lang.record.choices import token_length_normalized
from ....lang.state.state import State
from ....runtime.client.local import EngineLoop
from ....runtime.engine.engine import Engine
from ....runtime.load.start import start_engine
from ....runtime.protocol.config import EngineConfig
from ....runtime.protocol.request import Request, RequestOutput, TokenLogprob
from ....runtime.protocol.sampling_params import SamplingParams
from .peer_walk import Plan, replay, values_of


class BoughEngine:
    """`options`: model, max_num_seqs, and further fields of EngineConfig under "config".

    Threads are as many as OMP_NUM_THREADS says.
    """

    def __init__(self, options: dict[str, Any], start: Callable[[EngineConfig], Engine] = start_engine) -> None:
        settings = {"max_num_seqs": options["max_num_seqs"]} | options.get("config", {})
        config = EngineConfig(model=options["model"], **settings)
        self._loop = EngineLoop(start(config), config)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._run(prompts, SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True))

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        return self._run(prompts, SamplingParams(max_tokens=num_tokens, temperature=0.0), JsonSchema(schema))

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        sampling = SamplingParams(max_tokens=0, logprobs=1)
        (outputs,) = self._ask([Request(id="score", prompt=tuple(tokens), sampling=sampling, score_from=1)])
        entries: list[TokenLogprob] = [entry for output in outputs for entry in output.logprobs or ()]
        return [entry.logprob for entry in entries], [entry.top[0][0] for entry in entries]

    def _run(
        self, prompts: list[list[int]], sampling: SamplingParams, grammar: GrammarSpec | None = None
    ) -> list[list[int]]:
        requests = [
            Request(id=str(index), prompt=tuple(prompt), sampling=sampling, grammar=grammar, stream=False)
            for index, prompt in enumerate(prompts)
        ]
        return [[token for output in outputs for token in output.tokens] for outputs in self._ask(requests)]

    def _ask(self, requests: list[Request]) -> list[list[RequestOutput]]:
        """Outputs of each, when all have ended; they are submitted together."""
        heard: dict[str, list[RequestOutput]] = {request.id: [] for request in requests}
        ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def take(output: RequestOutput) -> None:
            heard[output.id].append(output)
            if output.finish is not None:
                ended.put(output.finish.error.message if output.finish.error else None)

        def submit() -> None:
            for request in requests:
                try:
                    self._loop.engine.submit(request, take)
                except Exception as error:  # noqa: BLE001  it goes to who asked
                    ended.put(str(error))

        self._loop.ask(submit, lambda _: None)
        for _ in requests:
            if message := ended.get():
                raise RuntimeError(message)
        return list(heard.values())


class RandomBoughEngine(BoughEngine):
    """A model of random weights on a GPU. `options`: model (one of SHAPES), device, dtype, max_model_len, max_num_seqs,
    kv_bytes."""

    def __init__(self, options: dict[str, Any]) -> None:
        from ...harness.models import random_engine  # needs torch

        config = {name: options[name] for name in ("device", "dtype", "max_model_len")}
        config |= {"max_batch_tokens": 8192, "kv_cache_memory": options["kv_bytes"]}
        super().__init__(options | {"config": config}, random_engine)


@api.function
def program(s: State, plan: Plan) -> dict[int, State]:
    """A plan as a program by hand would say it; nothing is read, so that it is one request. Its branches."""

    def gen(name: str, num_tokens: int, pattern: str | None) -> Any:
        how: dict[str, Any] = {"ignore_eos": True} if pattern is None else {"regex": pattern}
        return api.gen(name, max_tokens=num_tokens, temperature=0, **how)

    return replay(
        plan,
        s,
        fork=State.fork,
        value=State.ref,
        gen=gen,
        select=lambda name, choices: api.select(name, choices=choices, choices_method=token_length_normalized),
        role=lambda role: getattr(api, f"{role}_begin")(),
        end=lambda role: getattr(api, f"{role}_end")(),
    )


class BoughClient:
    """`options`: model, and fields of EngineConfig as "settings". Threads are as many as OMP_NUM_THREADS says."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._backend = LocalBackend(options["model"], **options["settings"])

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        started = time.perf_counter()
        if at_once == 1:
            states = [program.run(plan, backend=self._backend) for plan in plans]
        else:
            states = program.run_batch([(plan,) for plan in plans], backend=self._backend)
        programs = []
        for plan, state in zip(plans, states, strict=True):
            named = [(branch, state.ret_value[branch], name) for branch, name in values_of(plan)]
            programs.append(
                [[n, name, str(s[name]), s.get_meta_info(name).get("completion_tokens")] for n, s, name in named]
            )
        return {"seconds": time.perf_counter() - started, "programs": programs}
