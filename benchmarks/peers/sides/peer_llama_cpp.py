"""llama.cpp's side of a comparison: its own library through llama-cpp-python's bindings.

Batches are what `llama_decode` makes of many sequences: faster than anything that users of the bindings' `Llama` can
ask for, which answers one prompt after the other. What all prompts begin with is computed once and shared by
`llama_memory_seq_cp`. Where prompts come one by one, tokens that the last prompt had in the same place are kept.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import numpy as np

_MAX_BATCH = 2048  # tokens of one call
_SCORED = 256  # tokens of one call whose logits are all wanted
_MIN_SHARED = 16  # tokens, from which on sharing is worth a call


class LlamaCppEngine:
    """`options`: model_file (GGUF), threads, max_num_seqs, max_model_len."""

    def __init__(self, options: dict[str, Any]) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it tells of every graph that it builds
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(options["model_file"].encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {options['model_file']}")
        context = llama_cpp.llama_context_default_params()
        self._max_seqs = max(1, int(options["max_num_seqs"]))
        context.n_ctx = self._max_seqs * int(options["max_model_len"])  # in shares of the same size
        context.n_seq_max = self._max_seqs
        context.kv_unified = bool(options.get("unified"))
        context.n_batch, context.n_ubatch = _MAX_BATCH, 512
        context.n_threads = context.n_threads_batch = options["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)
        self._kept: list[list[int]] = []  # tokens of each sequence that lie in the cache

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._run(prompts, num_tokens, None)

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        grammar = llama_cpp.LlamaGrammar.from_json_schema(schema, verbose=False)._grammar
        samplers = []
        for _ in prompts:
            chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
            constraint = llama_cpp.llama_sampler_init_grammar(self._vocabulary, grammar.encode(), b"root")
            if not constraint:
                raise RuntimeError("llama.cpp takes no grammar for this schema")
            llama_cpp.llama_sampler_chain_add(chain, constraint)
            llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
            samplers.append(chain)
        try:
            return self._run(prompts, num_tokens, samplers)
        finally:
            for chain in samplers:
                llama_cpp.llama_sampler_free(chain)

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        self._clear()
        logprobs: list[float] = []
        likeliest: list[int] = []
        for start in range(0, len(tokens) - 1, _SCORED):
            here = tokens[start : min(start + _SCORED, len(tokens) - 1)]
            self._decode([(token, start + i, 0, True) for i, token in enumerate(here)])
            for i in range(len(here)):
                logits = self._logits(i).astype(np.float64)
                top = logits.max()
                logprobs.append(float(logits[tokens[start + i + 1]] - top - np.log(np.exp(logits - top).sum())))
                likeliest.append(int(logits.argmax()))
        self._clear()
        return logprobs, likeliest

    def _run(self, prompts: list[list[int]], num_tokens: int, samplers: list[Any] | None) -> list[list[int]]:
        outputs: list[list[int]] = []
        for start in range(0, len(prompts), self._max_seqs):
            stop = start + self._max_seqs
            outputs += self._together(prompts[start:stop], num_tokens, samplers and samplers[start:stop])
        return outputs

    def _together(self, prompts: list[list[int]], num_tokens: int, samplers: list[Any] | None) -> list[list[int]]:
        """Sequences side by side. With `samplers`, each ends where its own does."""
        cached = self._reuse(prompts)
        entries = [
            (token, cached[index] + i, index, cached[index] + i == len(prompt) - 1)
            for index, prompt in enumerate(prompts)
            for i, token in enumerate(prompt[cached[index] :])
        ]
        outputs: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(entries), _MAX_BATCH):
            self._take(entries[start : start + _MAX_BATCH], outputs, samplers)
        while True:
            running = [
                index
                for index, output in enumerate(outputs)
                if len(output) < num_tokens and not self._ended(output, samplers)
            ]
            if not running:
                break
            steps = [(outputs[index][-1], len(prompts[index]) + len(outputs[index]) - 1) for index in running]
            self._take([(*step, index, True) for step, index in zip(steps, running, strict=True)], outputs, samplers)
        self._kept = [prompt + output[:-1] for prompt, output in zip(prompts, outputs, strict=True)]
        return [output[:-1] if self._ended(output, samplers) else output for output in outputs]

    def _reuse(self, prompts: list[list[int]]) -> list[int]:
        """How many tokens of each prompt lie in the cache already: what was there before, or what all begin with."""
        kept = [_num_common([old, new[:-1]]) for old, new in zip(self._kept, prompts, strict=False)]
        kept += [0] * (len(prompts) - len(kept))
        shared = _num_common([prompt[:-1] for prompt in prompts]) if len(prompts) > 1 else 0
        if shared >= _MIN_SHARED and shared * (len(prompts) - 1) > sum(kept):
            self._share(prompts[0][:shared], len(prompts), already=min(kept[0], shared))
            return [shared] * len(prompts)
        for index in range(max(len(self._kept), len(prompts))):
            llama_cpp.llama_memory_seq_rm(self._memory, index, kept[index] if index < len(kept) else 0, -1)
        return kept

    def _share(self, beginning: list[int], num_sequences: int, *, already: int) -> None:
        """Computes what all sequences begin with once, and copies it to each; the first has some of it already."""
        for index in range(max(len(self._kept), num_sequences)):
            llama_cpp.llama_memory_seq_rm(self._memory, index, already if index == 0 else 0, -1)
        for start in range(already, len(beginning), _MAX_BATCH):
            here = beginning[start : start + _MAX_BATCH]
            self._decode([(token, start + i, 0, False) for i, token in enumerate(here)])
        for index in range(1, num_sequences):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, index, -1, -1)

    def _ended(self, output: list[int], samplers: list[Any] | None) -> bool:
        return samplers is not None and bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, output[-1]))

    def _take(
        self, entries: list[tuple[int, int, int, bool]], outputs: list[list[int]], samplers: list[Any] | None
    ) -> None:
        """Computes tokens, and appends to the sequences of those that want it what comes next."""
        self._decode(entries)
        for row, (_, _, index, wants) in enumerate(entries):
            if wants and samplers is not None:
                outputs[index].append(llama_cpp.llama_sampler_sample(samplers[index], self._context, row))
            elif wants:
                outputs[index].append(self._likeliest(row))

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Entries are (token, position, sequence, whether its logits are wanted)."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for row, (token, position, index, wants) in enumerate(entries):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, index, wants
        if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, row: int) -> Any:
        address = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self._num_tokens,))

    def _likeliest(self, row: int) -> int:
        return int(self._logits(row).argmax())

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._kept = []


def _num_common(lists: list[list[int]]) -> int:
    """Leading tokens that all have."""
    shortest = min(len(each) for each in lists)
    first = lists[0]
    return next((i for i in range(shortest) if any(other[i] != first[i] for other in lists)), shortest)


def load(options: dict[str, Any]) -> LlamaCppEngine:
    return LlamaCppEngine(options)
