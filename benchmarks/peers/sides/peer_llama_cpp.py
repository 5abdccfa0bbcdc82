"""llama.cpp's side of a comparison: its own library through llama-cpp-python's bindings.

Batches of prompts are what `llama_decode` makes of many sequences: faster than anything that users of the bindings'
`Llama` can ask for, which answers one prompt after the other. What all prompts begin with is computed once and shared
by `llama_memory_seq_cp`. Where prompts come one by one, tokens that the last prompt had in the same place are kept.

Programs have many sequences in one context, as llama.cpp's own server has them in slots. A generation takes the free
sequence whose tokens begin most like its prompt, or a copy of a busy one's where that saves more; one that begins like
a prompt which is just being computed waits for it. Choices are scored side by side.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, field
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import numpy as np

from .peer_walk import Answer, Call, Plan, gbnf, run_stepping

_MAX_BATCH = 2048  # tokens of one call
_SCORED = 256  # tokens of one call whose logits are all wanted
_MIN_SHARED = 16  # tokens, from which on sharing, copying or waiting is worth it

Entry = tuple[int, int, int, bool]
"""A token to compute: its id, position and sequence, and whether its logits are wanted."""


class _Context:
    """A model with a cache for `max_num_seqs` sequences of `max_model_len` tokens.

    `options`: model_file (GGUF), threads, max_num_seqs, max_model_len.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it tells of every graph that it builds
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(options["model_file"].encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {options['model_file']}")
        context = llama_cpp.llama_context_default_params()
        self.max_seqs = max(1, int(options["max_num_seqs"]))
        context.n_ctx = self.max_seqs * int(options["max_model_len"])  # in shares of the same size
        context.n_seq_max = self.max_seqs
        context.kv_unified = bool(options.get("unified"))
        context.n_batch, context.n_ubatch = _MAX_BATCH, 512
        context.n_threads = context.n_threads_batch = options["threads"]
        self.address = llama_cpp.llama_init_from_model(self._model, context)
        self.memory = llama_cpp.llama_get_memory(self.address)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)

    def decode(self, entries: list[Entry]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for row, (token, position, number, wants) in enumerate(entries):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, wants
        if entries and (status := llama_cpp.llama_decode(self.address, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def logits(self, row: int) -> Any:
        """Logits of an entry of the last `decode`, float32 [V]."""
        address = llama_cpp.llama_get_logits_ith(self.address, row)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self._num_tokens,))

    def draw(self, row: int, sampler: Any) -> int:
        """The likeliest token that `sampler` allows; None: of all."""
        if sampler is None:
            return int(self.logits(row).argmax())
        token: int = llama_cpp.llama_sampler_sample(sampler, self.address, row)
        return token

    def logprob(self, row: int, token: int, dtype: Any = np.float32) -> float:
        logits = self.logits(row).astype(dtype, copy=False)
        top = logits.max()
        return float(logits[token] - top - np.log(np.exp(logits - top).sum()))

    def sampler(self, grammar: str) -> Any:
        """Greedy under a grammar."""
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        constraint = llama_cpp.llama_sampler_init_grammar(self.vocabulary, grammar.encode(), b"root")
        if not constraint:
            raise RuntimeError(f"llama.cpp does not take the grammar {grammar}")
        llama_cpp.llama_sampler_chain_add(chain, constraint)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain

    def is_end(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self.vocabulary, token))

    def keep(self, number: int, count: int) -> None:
        """Forgets all of a sequence but its first tokens."""
        llama_cpp.llama_memory_seq_rm(self.memory, number, count, -1)

    def copy(self, source: int, target: int) -> None:
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, -1, -1)


class LlamaCppEngine:
    """`options`: as `_Context`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._context = _Context(options)
        self._kept: list[list[int]] = []  # tokens of each sequence that lie in the cache

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._run(prompts, num_tokens, None)

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        grammar = llama_cpp.LlamaGrammar.from_json_schema(schema, verbose=False)._grammar
        samplers = [self._context.sampler(grammar) for _ in prompts]
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
            self._context.decode([(token, start + i, 0, True) for i, token in enumerate(here)])
            for i in range(len(here)):
                logprobs.append(self._context.logprob(i, tokens[start + i + 1], np.float64))
                likeliest.append(self._context.draw(i, None))
        self._clear()
        return logprobs, likeliest

    def _run(self, prompts: list[list[int]], num_tokens: int, samplers: list[Any] | None) -> list[list[int]]:
        outputs: list[list[int]] = []
        for start in range(0, len(prompts), self._context.max_seqs):
            stop = start + self._context.max_seqs
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
        """Tokens of each prompt that lie in the cache already: what was there before, or what all begin with."""
        kept = [_num_common(old, new, len(new) - 1) for old, new in zip(self._kept, prompts, strict=False)]
        kept += [0] * (len(prompts) - len(kept))
        shared = min((_num_common(prompts[0], each, len(each) - 1) for each in prompts[1:]), default=0)
        shared = min(shared, len(prompts[0]) - 1)
        if shared >= _MIN_SHARED and shared * (len(prompts) - 1) > sum(kept):
            self._share(prompts[0][:shared], len(prompts), already=min(kept[0], shared))
            return [shared] * len(prompts)
        for index in range(max(len(self._kept), len(prompts))):
            self._context.keep(index, kept[index] if index < len(kept) else 0)
        return kept

    def _share(self, beginning: list[int], num_sequences: int, *, already: int) -> None:
        """Computes what all sequences begin with once, and copies it to each; the first has some of it already."""
        for index in range(max(len(self._kept), num_sequences)):
            self._context.keep(index, already if index == 0 else 0)
        for start in range(already, len(beginning), _MAX_BATCH):
            here = beginning[start : start + _MAX_BATCH]
            self._context.decode([(token, start + i, 0, False) for i, token in enumerate(here)])
        for index in range(1, num_sequences):
            self._context.copy(0, index)

    def _ended(self, output: list[int], samplers: list[Any] | None) -> bool:
        return samplers is not None and self._context.is_end(output[-1])

    def _take(self, entries: list[Entry], outputs: list[list[int]], samplers: list[Any] | None) -> None:
        """Computes tokens, and appends to the sequences of those that want it what comes next."""
        self._context.decode(entries)
        for row, (_, _, index, wants) in enumerate(entries):
            if wants:
                outputs[index].append(self._context.draw(row, samplers and samplers[index]))

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(self._context.memory, False)
        self._kept = []


@dataclass(eq=False)
class _Work:
    """A prompt to be continued by `num_tokens`, or of which all tokens from `scored_from` on are scored."""

    call: Call
    prompt: list[int]
    num_tokens: int = 0
    sampler: Any = None
    scored_from: int | None = None
    choice: dict[int, float] = field(default_factory=dict)
    place: int = 0
    output: list[int] = field(default_factory=list)
    score: float = 0.0


@dataclass(eq=False)
class _Slot:
    """A sequence. `tokens` are in the cache; `left` are to be computed before anything is drawn."""

    number: int
    tokens: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    work: _Work | None = None


class LlamaCppClient:
    """`options`: as `_Context`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._context = _Context(options)
        self._slots = [_Slot(number) for number in range(self._context.max_seqs)]
        self._waiting: list[_Work] = []

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        return run_stepping(plans, at_once, stop_s, self)

    def add(self, call: Call) -> None:
        prompt = self._encode(call.prompt)
        scores: dict[int, float] = {}
        for place, choice in enumerate(call.choices):
            whole = prompt + self._encode(choice)
            self._waiting.append(_Work(call, whole, scored_from=len(prompt), choice=scores, place=place))
        if not call.choices:
            sampler = None if call.pattern is None else self._context.sampler(f"root ::= {gbnf(call.pattern)}")
            self._waiting.append(_Work(call, prompt, call.num_tokens, sampler))

    def step(self) -> list[tuple[Call, Answer]]:
        self._waiting = [work for work in self._waiting if not self._place(work)]
        entries: list[Entry] = []
        drawn: list[tuple[int, _Slot]] = []
        scored: list[tuple[int, _Slot, int]] = []
        for slot in sorted((each for each in self._slots if each.work is not None), key=lambda each: len(each.left)):
            work, room = slot.work, _MAX_BATCH - len(entries)
            assert work is not None
            for token in slot.left[:room]:
                position = len(slot.tokens)
                slot.tokens.append(token)
                if work.scored_from is not None:
                    wants = work.scored_from - 1 <= position < len(work.prompt) - 1
                    if wants:
                        scored.append((len(entries), slot, work.prompt[position + 1]))
                else:
                    wants = position == len(work.prompt) + len(work.output) - 1
                    if wants:
                        drawn.append((len(entries), slot))
                entries.append((token, position, slot.number, wants))
            del slot.left[:room]
        self._context.decode(entries)
        for row, slot, token in scored:
            assert slot.work is not None
            slot.work.score += self._context.logprob(row, token)
        for row, slot in drawn:
            self._draw(row, slot)
        return [found for slot in self._slots if (found := self._ended(slot)) is not None]

    def _place(self, work: _Work) -> bool:
        """Gives the work a sequence; False: none is free, or it waits for another that begins in the same way."""
        free = [slot for slot in self._slots if slot.work is None]
        if not free:
            return False
        most = len(work.prompt) - 1 if work.scored_from is None else work.scored_from - 1
        best = max(self._slots, key=lambda slot: _num_common(slot.tokens, work.prompt, most))
        shared = _num_common(best.tokens, work.prompt, most)
        coming = [slot.work.prompt for slot in self._slots if slot.left and slot.work is not None]
        if any(_num_common(prompt, work.prompt, most) >= shared + _MIN_SHARED for prompt in coming):
            return False
        # Of equals, the one whose tokens are worth least to others.
        slot = max(free, key=lambda each: (_num_common(each.tokens, work.prompt, most), -len(each.tokens)))
        own = _num_common(slot.tokens, work.prompt, most)
        if best is not slot and shared >= own + _MIN_SHARED:
            self._context.keep(slot.number, 0)
            self._context.copy(best.number, slot.number)
            own = shared
        self._context.keep(slot.number, own)
        slot.tokens, slot.left, slot.work = work.prompt[:own], work.prompt[own:], work
        return True

    def _draw(self, row: int, slot: _Slot) -> None:
        work = slot.work
        assert work is not None
        if work.num_tokens == 0:
            return
        token = self._context.draw(row, work.sampler)
        work.output.append(token)
        slot.left = [token]

    def _ended(self, slot: _Slot) -> tuple[Call, Answer] | None:
        work = slot.work
        if work is None or (work.scored_from is not None and slot.left):
            return None
        if work.scored_from is not None:
            slot.work = None
            work.choice[work.place] = work.score / (len(work.prompt) - work.scored_from)
            if len(work.choice) < len(work.call.choices):
                return None
            best = max(work.choice, key=work.choice.__getitem__)
            return work.call, Answer(work.call.choices[best])
        is_end = work.sampler is not None and bool(work.output)
        is_end = is_end and self._context.is_end(work.output[-1])
        if not is_end and (len(work.output) < work.num_tokens or (work.num_tokens == 0 and slot.left)):
            return None
        slot.work, slot.left = None, []
        if work.sampler is not None:
            llama_cpp.llama_sampler_free(work.sampler)
        tokens = work.output[:-1] if is_end else work.output
        return work.call, Answer(self._decode_text(tokens), len(tokens))

    def _encode(self, text: str) -> list[int]:
        content = text.encode()
        room = (llama_cpp.llama_token * (len(content) + 8))()
        count = llama_cpp.llama_tokenize(self._context.vocabulary, content, len(content), room, len(room), False, True)
        return list(room[:count])

    def _decode_text(self, tokens: list[int]) -> str:
        room = ctypes.create_string_buffer(64 * len(tokens) + 64)
        given = (llama_cpp.llama_token * len(tokens))(*tokens)
        count = llama_cpp.llama_detokenize(self._context.vocabulary, given, len(tokens), room, len(room), False, True)
        return room.raw[:count].decode("utf-8", "replace")


def _num_common(tokens: list[int], prompt: list[int], most: int) -> int:
    """Leading tokens of both, `most` at most."""
    most = min(len(tokens), len(prompt), most)
    if tokens[:most] == prompt[:most]:
        return most
    return next(i for i in range(most) if tokens[i] != prompt[i])
