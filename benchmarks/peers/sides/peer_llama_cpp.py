"""llama.cpp's side of a comparison: its library through the bindings of llama-cpp-python.

Batches are calls of `llama_decode` for many sequences, which is faster than the bindings' `Llama`, which answers one
prompt after another. Sequences lie in one context, as in the slots of llama.cpp's server. A generation takes the free
sequence with the longest common prefix, or a copy of a busy one (`llama_memory_seq_cp`) where that saves more; one that
shares a prefix with a prompt that is being computed waits for it. Choices are scored concurrently.
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

_NO_CALL = Call("", "")

Entry = tuple[int, int, int, bool]
"""A token to compute: its id, position and sequence, and whether its logits are wanted."""


@dataclass(eq=False)
class _Work:
    """A prompt to be continued by `num_tokens`, or of which all tokens from `scored_from` on are scored."""

    prompt: list[int]
    num_tokens: int = 0
    sampler: Any = None  # of answers under a grammar, which end where it lets them end
    scored_from: int | None = None
    call: Call = _NO_CALL  # of a program, which the work is for
    output: list[int] = field(default_factory=list)
    score: float = 0.0
    is_over: bool = False

    @property
    def reused(self) -> int:
        """Leading tokens that may come from the cache."""
        return (len(self.prompt) if self.scored_from is None else self.scored_from) - 1


@dataclass(eq=False)
class _Slot:
    """A sequence. `tokens` are in the cache; `left` are to be computed before anything is drawn."""

    number: int
    tokens: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    work: _Work | None = None


class LlamaCpp:
    """A model with a cache for `max_num_seqs` sequences of `max_model_len` tokens, and work that waits for one.

    `options`: model_file (GGUF), threads, max_num_seqs, max_model_len.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it tells of every graph that it builds
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(options["model_file"].encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp could not load {options['model_file']}")
        context = llama_cpp.llama_context_default_params()
        context.n_seq_max = max(1, int(options["max_num_seqs"]))
        context.n_ctx = context.n_seq_max * int(options["max_model_len"])  # in shares of the same size
        context.kv_unified = False
        context.n_batch, context.n_ubatch = _MAX_BATCH, 512
        context.n_threads = context.n_threads_batch = options["threads"]
        self._context = llama_cpp.llama_init_from_model(model, context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)
        self._waiting: list[_Work] = []
        self._slots = [_Slot(number) for number in range(context.n_seq_max)]
        self._choices: dict[Call, list[_Work]] = {}

    # Prompts

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._continue([_Work(prompt, num_tokens) for prompt in prompts])

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        grammar = llama_cpp.LlamaGrammar.from_json_schema(schema, verbose=False)._grammar
        return self._continue([_Work(prompt, num_tokens, self._sampler(grammar)) for prompt in prompts])

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        logprobs: list[float] = []
        likeliest: list[int] = []
        self._clear()
        for start in range(0, len(tokens) - 1, _SCORED):
            here = tokens[start : min(start + _SCORED, len(tokens) - 1)]
            self._decode([(token, start + i, 0, True) for i, token in enumerate(here)])
            logprobs += [self._logprob(i, tokens[start + i + 1], np.float64) for i in range(len(here))]
            likeliest += [self._draw(i, None) for i in range(len(here))]
        self._clear()
        return logprobs, likeliest

    def _continue(self, works: list[_Work]) -> list[list[int]]:
        self._waiting += works
        num_left = len(works)
        while num_left:
            num_left -= len(self._advance())
        return [work.output for work in works]

    # Programs

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        return run_stepping(plans, at_once, stop_s, self.step)

    def step(self, calls: list[Call]) -> list[tuple[Call, Answer]]:
        """Begins all calls, and makes a step of `run_stepping`."""
        while calls:
            self._begin(calls.pop(0))
        found = []
        for work in self._advance():
            if not work.call.choices:
                found.append((work.call, Answer(self._text(work.output), len(work.output))))
                continue
            works = self._choices.get(work.call, [])
            if works and all(each.is_over for each in works):
                del self._choices[work.call]
                scores = [each.score / (len(each.prompt) - (each.scored_from or 0)) for each in works]
                found.append((work.call, Answer(work.call.choices[scores.index(max(scores))])))
        return found

    def _begin(self, call: Call) -> None:
        prompt = self._encode(call.prompt)
        if call.choices:
            wholes = [prompt + self._encode(choice) for choice in call.choices]
            works = self._choices[call] = [_Work(whole, scored_from=len(prompt), call=call) for whole in wholes]
        else:
            sampler = None if call.pattern is None else self._sampler(f"root ::= {gbnf(call.pattern)}")
            works = [_Work(prompt, call.num_tokens, sampler, call=call)]
        self._waiting += works

    def _encode(self, text: str) -> list[int]:
        content = text.encode()
        room = (llama_cpp.llama_token * (len(content) + 8))()
        count = llama_cpp.llama_tokenize(self._vocabulary, content, len(content), room, len(room), False, True)
        return list(room[:count])

    def _text(self, tokens: list[int]) -> str:
        room = ctypes.create_string_buffer(64 * len(tokens) + 64)
        given = (llama_cpp.llama_token * len(tokens))(*tokens)
        count = llama_cpp.llama_detokenize(self._vocabulary, given, len(tokens), room, len(room), False, True)
        return room.raw[:count].decode("utf-8", "replace")

    # Both

    def _decode(self, entries: list[Entry]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for row, (token, position, number, wants) in enumerate(entries):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, wants
        if entries and (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, row: int) -> Any:
        """Logits of an entry of the last `_decode`, float32 [V]."""
        address = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self._num_tokens,))

    def _draw(self, row: int, sampler: Any) -> int:
        """The likeliest token that `sampler` allows; None: of all."""
        if sampler is None:
            return int(self._logits(row).argmax())
        return int(llama_cpp.llama_sampler_sample(sampler, self._context, row))

    def _logprob(self, row: int, token: int, dtype: Any = np.float32) -> float:
        logits = self._logits(row).astype(dtype, copy=False)
        top = logits.max()
        return float(logits[token] - top - np.log(np.exp(logits - top).sum()))

    def _sampler(self, grammar: str) -> Any:
        """Greedy under a grammar."""
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        constraint = llama_cpp.llama_sampler_init_grammar(self._vocabulary, grammar.encode(), b"root")
        if not constraint:
            raise RuntimeError(f"llama.cpp does not take the grammar {grammar}")
        llama_cpp.llama_sampler_chain_add(chain, constraint)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain

    def _keep(self, number: int, count: int) -> None:
        """Forgets all of a sequence but its first tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, number, count, -1)

    def _advance(self) -> list[_Work]:
        """Computes up to a batch of tokens; returns the work that this ended."""
        self._waiting = [work for work in self._waiting if not self._place(work)]
        entries: list[Entry] = []
        drawn: list[tuple[int, _Slot, _Work]] = []
        scored: list[tuple[int, _Work, int]] = []
        for slot in sorted((each for each in self._slots if each.work is not None), key=lambda each: len(each.left)):
            work, room = slot.work, _MAX_BATCH - len(entries)
            assert work is not None
            for token in slot.left[:room]:
                position = len(slot.tokens)
                slot.tokens.append(token)
                if work.scored_from is not None:
                    wants = work.scored_from - 1 <= position < len(work.prompt) - 1
                    scored += [(len(entries), work, work.prompt[position + 1])] if wants else []
                else:
                    wants = position == len(work.prompt) + len(work.output) - 1 and work.num_tokens > 0
                    drawn += [(len(entries), slot, work)] if wants else []
                entries.append((token, position, slot.number, wants))
            del slot.left[:room]
        self._decode(entries)
        for row, work, token in scored:
            work.score += self._logprob(row, token)
        for row, slot, work in drawn:
            slot.left = [self._draw(row, work.sampler)]
            work.output += slot.left
        return [work for slot in self._slots if (work := self._ended(slot)) is not None]

    def _clear(self) -> None:
        """Forgets all that is in the cache."""
        llama_cpp.llama_memory_clear(self._memory, False)
        self._slots = [_Slot(slot.number) for slot in self._slots]

    def _place(self, work: _Work) -> bool:
        """Gives the work a sequence; False: none is free, or it waits for another that begins in the same way."""
        free = [slot for slot in self._slots if slot.work is None]
        if not free:
            return False
        most = work.reused
        best = max(self._slots, key=lambda slot: _num_common(slot.tokens, work.prompt, most))
        shared = _num_common(best.tokens, work.prompt, most)
        coming = [slot.work.prompt for slot in self._slots if slot.left and slot.work is not None]
        if any(_num_common(prompt, work.prompt, most) >= shared + _MIN_SHARED for prompt in coming):
            return False
        # Of equals, the one whose tokens are worth least to others.
        slot = max(free, key=lambda each: (_num_common(each.tokens, work.prompt, most), -len(each.tokens)))
        own = _num_common(slot.tokens, work.prompt, most)
        if best is not slot and shared >= own + _MIN_SHARED:
            self._keep(slot.number, 0)
            llama_cpp.llama_memory_seq_cp(self._memory, best.number, slot.number, -1, -1)
            own = shared
        self._keep(slot.number, own)
        slot.tokens, slot.left, slot.work = work.prompt[:own], work.prompt[own:], work
        return True

    def _ended(self, slot: _Slot) -> _Work | None:
        work = slot.work
        if work is None:
            return None
        constrained = work.sampler is not None and bool(work.output)
        is_end = constrained and bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, work.output[-1]))
        if not is_end and (len(work.output) < work.num_tokens or (work.num_tokens == 0 and slot.left)):
            return None
        if is_end:
            work.output.pop()
        if work.sampler is not None:
            llama_cpp.llama_sampler_free(work.sampler)
        slot.work, slot.left, work.is_over = None, [], True
        return work


def _num_common(tokens: list[int], prompt: list[int], most: int) -> int:
    """Leading tokens of both, `most` at most."""
    most = min(len(tokens), len(prompt), most)
    if tokens[:most] == prompt[:most]:
        return most
    return next(i for i in range(most) if tokens[i] != prompt[i])
