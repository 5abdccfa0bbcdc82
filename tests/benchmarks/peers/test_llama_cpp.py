"""llama.cpp's side on a library that is made up: what is shared is computed once, and every answer is its prompt's."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bough.benchmarks.peers.sides.peer_walk import Call

SIZE = 16
SYSTEM = [1 + number % 7 for number in range(40)]


def following(tokens: list[int]) -> int:
    return (sum(tokens) * 7 + len(tokens)) % SIZE


class Library(SimpleNamespace):
    """Sequences as lists; the likeliest token after one is `following` of it."""

    llama_token = ctypes.c_int

    def __init__(self) -> None:
        super().__init__(sequences={}, logits={}, num_computed=0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("llama_"):
            raise AttributeError(name)
        return lambda *arguments: SimpleNamespace()

    def llama_vocab_n_tokens(self, vocabulary: Any) -> int:
        return SIZE

    def llama_batch_init(self, size: int, *others: int) -> Any:
        return SimpleNamespace(
            **{name: [None] * size for name in ("token", "pos", "n_seq_id", "logits")},
            seq_id=[[0] for _ in range(size)],
        )

    def llama_decode(self, address: Any, batch: Any) -> int:
        self.logits.clear()
        for row in range(batch.n_tokens):
            sequence = self.sequences.setdefault(batch.seq_id[row][0], [])
            assert batch.pos[row] == len(sequence)
            sequence.append(batch.token[row])
            self.num_computed += 1
            if batch.logits[row]:
                self.logits[row] = (ctypes.c_float * SIZE)(
                    *[float(token == following(sequence)) for token in range(SIZE)]
                )
        return 0

    def llama_get_logits_ith(self, address: Any, row: int) -> Any:
        return self.logits[row]

    def llama_memory_seq_rm(self, memory: Any, number: int, start: int, stop: int) -> None:
        del self.sequences.setdefault(number, [])[start:]

    def llama_memory_seq_cp(self, memory: Any, source: int, target: int, *span: int) -> None:
        self.sequences[target] = list(self.sequences[source])

    def llama_memory_clear(self, memory: Any, data: bool) -> None:
        self.sequences.clear()

    def llama_tokenize(self, vocabulary: Any, text: bytes, size: int, room: Any, *others: Any) -> int:
        room[:size] = [byte % SIZE for byte in text]
        return size

    def llama_detokenize(self, vocabulary: Any, tokens: Any, count: int, room: Any, *others: Any) -> int:
        room.raw = bytes(65 + token for token in tokens) + room.raw[count:]
        return count


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "llama_cpp", made)
    return made


OPTIONS = {"model_file": "m", "max_num_seqs": 4, "max_model_len": 100, "threads": 1}


def side(name: str) -> Any:
    module = "bough.benchmarks.peers.sides.peer_llama_cpp"
    sys.modules.pop(module, None)
    return getattr(importlib.import_module(module), name)(OPTIONS)


def continued(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


def test_more_prompts_than_sequences_are_answered_and_what_they_share_is_computed_once(library: Library) -> None:
    engine = side("LlamaCpp")
    prompts = [[*SYSTEM, number, number + 1] for number in range(10)]
    assert engine.generate(prompts, 5) == [continued(prompt, 5) for prompt in prompts]
    assert library.num_computed == len(SYSTEM) + 10 * 2 + 10 * 4  # the last token of an answer is not computed


def test_a_chat_goes_on_where_it_was(library: Library) -> None:
    engine = side("LlamaCpp")
    (answer,) = engine.generate([SYSTEM], 5)
    before = library.num_computed
    assert engine.generate([[*SYSTEM, *answer, 3]], 1) == [continued([*SYSTEM, *answer, 3], 1)]
    assert library.num_computed - before == 2


def test_scores(library: Library) -> None:
    engine = side("LlamaCpp")
    logprobs, likeliest = engine.score(SYSTEM)
    assert likeliest == [following(SYSTEM[: at + 1]) for at in range(len(SYSTEM) - 1)]
    assert len(logprobs) == len(likeliest)


def test_calls_are_generated_or_chosen(library: Library) -> None:
    client = side("LlamaCpp")
    prompt = "a long prompt that all of the choices share"
    tokens = [byte % SIZE for byte in prompt.encode()]
    likely = following(tokens)
    choices = [chr(96 + token) for token in ((likely + 1) % SIZE, likely)]
    chosen, prime = Call("a", prompt, choices=choices), Call("", prompt)
    written = Call("b", prompt, 3)
    calls = [chosen, prime, written]
    found: dict[Call, Any] = {}
    while len(found) < 3:
        found |= dict(client.step(calls))
    assert found[chosen].text == choices[1]
    assert found[prime].num_tokens == 0
    assert found[written].text == "".join(chr(65 + token) for token in continued(tokens, 3))
