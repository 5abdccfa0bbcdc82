"""Our side of a comparison: the engine on a thread of this process, as scripts have it, with its defaults."""

from __future__ import annotations

import functools
import queue
from typing import Any

from ....constrain.spec import GrammarSpec, JsonSchema
from ....runtime.client.local import EngineLoop
from ....runtime.load.start import start_engine
from ....runtime.protocol.config import EngineConfig
from ....runtime.protocol.request import Request, RequestOutput, TokenLogprob
from ....runtime.protocol.sampling_params import SamplingParams


class BoughEngine:
    """`options`: model, max_num_seqs, and further fields of EngineConfig under "config".

    Threads are as many as OMP_NUM_THREADS says.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        settings = {"max_num_seqs": options["max_num_seqs"]} | options.get("config", {})
        config = EngineConfig(model=options["model"], **settings)
        self._loop = EngineLoop(start_engine(config), config)

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
        """What is said of each, when all have ended; they are submitted together."""
        heard: list[list[RequestOutput]] = [[] for _ in requests]
        ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def take(index: int, output: RequestOutput) -> None:
            heard[index].append(output)
            if output.finish is not None:
                ended.put(output.finish.error.message if output.finish.error else None)

        def submit() -> None:
            for index, request in enumerate(requests):
                try:
                    self._loop.engine.submit(request, functools.partial(take, index))
                except Exception as error:  # noqa: BLE001  it goes to who asked
                    ended.put(str(error))

        self._loop.ask(submit, lambda _: None)
        for _ in requests:
            if message := ended.get():
                raise RuntimeError(message)
        return heard


def load(options: dict[str, Any]) -> BoughEngine:
    return BoughEngine(options)
