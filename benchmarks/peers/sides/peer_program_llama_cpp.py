"""llama.cpp's side of a comparison on programs: many sequences in one context, as its own server has them in slots.

A generation takes the free sequence whose tokens begin most like its prompt, or a copy of a busy one's where that saves
more; one that begins like a prompt which is just being computed waits for it. Choices are scored side by side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import numpy as np

_MAX_BATCH = 2048  # tokens of one call
_MIN_SHARED = 16  # tokens, from which on copying or waiting is worth it


@dataclass(eq=False)
class _Work:
    """A prompt to be continued by `num_tokens`, or of which all tokens from `scored_from` on are scored."""

    call: Any
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
    """`options`: model_file (GGUF), threads, max_num_seqs, max_model_len."""

    def __init__(self, options: dict[str, Any], beside: Callable[[str], Any]) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            options["model_file"].encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {options['model_file']}")
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = options["max_num_seqs"]
        params.n_ctx = options["max_num_seqs"] * options["max_model_len"]
        params.n_batch, params.n_ubatch = _MAX_BATCH, 512
        params.n_threads = params.n_threads_batch = options["threads"]
        params.kv_unified = bool(options.get("unified"))
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)
        self._slots = [_Slot(number) for number in range(options["max_num_seqs"])]
        self._waiting: list[_Work] = []
        self._walk = beside("peer_program_walk")
        self._gbnf = beside("peer_program_gbnf").gbnf

    def run(self, plans: list[Any], at_once: int, stop_s: float) -> dict[str, Any]:
        result: dict[str, Any] = self._walk.run_stepping(plans, at_once, stop_s, self)
        return result

    def add(self, call: Any) -> None:
        prompt = self._encode(call.prompt)
        scores: dict[int, float] = {}
        for place, choice in enumerate(call.choices):
            whole = prompt + self._encode(choice)
            self._waiting.append(_Work(call, whole, scored_from=len(prompt), choice=scores, place=place))
        if not call.choices:
            sampler = None if call.pattern is None else self._sampler(call.pattern)
            self._waiting.append(_Work(call, prompt, call.num_tokens, sampler))

    def step(self) -> list[tuple[Any, Any]]:
        self._waiting = [work for work in self._waiting if not self._place(work)]
        entries: list[tuple[int, int, int, bool]] = []
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
        self._decode(entries)
        for row, slot, token in scored:
            assert slot.work is not None
            slot.work.score += self._logprob(row, token)
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
            llama_cpp.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
            llama_cpp.llama_memory_seq_cp(self._memory, best.number, slot.number, -1, -1)
            own = shared
        llama_cpp.llama_memory_seq_rm(self._memory, slot.number, own, -1)
        slot.tokens, slot.left, slot.work = work.prompt[:own], work.prompt[own:], work
        return True

    def _draw(self, row: int, slot: _Slot) -> None:
        work = slot.work
        assert work is not None
        if work.num_tokens == 0:
            return
        if work.sampler is None:
            token = int(self._logits(row).argmax())
        else:
            token = llama_cpp.llama_sampler_sample(work.sampler, self._context, row)
        work.output.append(token)
        slot.left = [token]

    def _ended(self, slot: _Slot) -> tuple[Any, Any] | None:
        work = slot.work
        if work is None or (work.scored_from is not None and slot.left):
            return None
        if work.scored_from is not None:
            slot.work = None
            work.choice[work.place] = work.score / (len(work.prompt) - work.scored_from)
            if len(work.choice) < len(work.call.choices):
                return None
            best = max(work.choice, key=work.choice.__getitem__)
            return work.call, self._walk.Answer(work.call.choices[best])
        is_end = work.sampler is not None and bool(work.output)
        is_end = is_end and llama_cpp.llama_vocab_is_eog(self._vocabulary, work.output[-1])
        if not is_end and (len(work.output) < work.num_tokens or (work.num_tokens == 0 and slot.left)):
            return None
        slot.work, slot.left = None, []
        if work.sampler is not None:
            llama_cpp.llama_sampler_free(work.sampler)
        tokens = work.output[:-1] if is_end else work.output
        return work.call, self._walk.Answer(self._decode_text(tokens), len(tokens))

    def _sampler(self, pattern: str) -> Any:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        grammar = f"root ::= {self._gbnf(pattern)}".encode()
        constraint = llama_cpp.llama_sampler_init_grammar(self._vocabulary, grammar, b"root")
        if not constraint:
            raise RuntimeError(f"llama.cpp takes no grammar for {pattern}")
        llama_cpp.llama_sampler_chain_add(chain, constraint)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Entries are (token, position, sequence, whether its logits are wanted)."""
        if not entries:
            return
        batch = self._batch
        batch.n_tokens = len(entries)
        for row, (token, position, number, wants) in enumerate(entries):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, wants
        if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, row: int) -> Any:
        address = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self._num_tokens,))

    def _logprob(self, row: int, token: int) -> float:
        logits = self._logits(row)
        top = logits.max()
        return float(logits[token] - top - np.log(np.exp(logits - top).sum()))

    def _encode(self, text: str) -> list[int]:
        content = text.encode()
        room = (llama_cpp.llama_token * (len(content) + 8))()
        count = llama_cpp.llama_tokenize(self._vocabulary, content, len(content), room, len(room), False, True)
        return list(room[:count])

    def _decode_text(self, tokens: list[int]) -> str:
        room = ctypes.create_string_buffer(64 * len(tokens) + 64)
        given = (llama_cpp.llama_token * len(tokens))(*tokens)
        count = llama_cpp.llama_detokenize(self._vocabulary, given, len(tokens), room, len(room), False, True)
        return room.raw[:count].decode("utf-8", "replace")


def _num_common(tokens: list[int], prompt: list[int], most: int) -> int:
    """Leading tokens of both, `most` at most."""
    most = min(len(tokens), len(prompt), most)
    if tokens[:most] == prompt[:most]:
        return most
    return next(i for i in range(most) if tokens[i] != prompt[i])


def load(options: dict[str, Any], beside: Callable[[str], Any]) -> LlamaCppClient:
    return LlamaCppClient(options, beside)
