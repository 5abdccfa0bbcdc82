"""Our side of a comparison: the engine as `LLM` has it, with its defaults."""

from __future__ import annotations

from typing import Any

from ..constrain.spec import GrammarSpec, JsonSchema
from ..runtime.config import EngineConfig
from ..runtime.request import Request, RequestOutput, TokenLogprob
from ..runtime.sampling import SamplingParams
from ..runtime.start import start_engine


class BoughEngine:
    """`options`: model, max_num_seqs, and further fields of EngineConfig under "config".

    Threads are as many as OMP_NUM_THREADS says.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        settings = {"max_num_seqs": options["max_num_seqs"]} | options.get("config", {})
        self._engine = start_engine(EngineConfig(model=options["model"], **settings))

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._run(prompts, SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True))

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        return self._run(prompts, SamplingParams(max_tokens=num_tokens, temperature=0.0), JsonSchema(schema))

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        entries: list[TokenLogprob] = []
        done = False

        def take(output: RequestOutput) -> None:
            nonlocal done
            entries.extend(output.logprobs or ())
            done = output.finish is not None

        sampling = SamplingParams(max_tokens=0, logprobs=1)
        self._engine.submit(Request(id="score", prompt=tuple(tokens), sampling=sampling, score_from=1), take)
        while not done:
            self._engine.step()
        return [entry.logprob for entry in entries], [entry.top[0][0] for entry in entries]

    def _run(
        self, prompts: list[list[int]], sampling: SamplingParams, grammar: GrammarSpec | None = None
    ) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        running = set(range(len(prompts)))

        def submit(index: int) -> None:
            def take(output: RequestOutput) -> None:
                outputs[index].extend(output.tokens)
                if output.finish is not None:
                    if output.finish.error is not None:
                        raise RuntimeError(output.finish.error.message)
                    running.discard(index)

            request = Request(id=str(index), prompt=tuple(prompts[index]), sampling=sampling, grammar=grammar)
            self._engine.submit(request, take)

        for index in range(len(prompts)):
            submit(index)
        while running:
            if self._engine.idle:  # a grammar is still being compiled
                self._engine.wait_for_grammar(timeout_s=0.05)
            self._engine.step()
        return outputs


def load(options: dict[str, Any]) -> BoughEngine:
    return BoughEngine(options)
