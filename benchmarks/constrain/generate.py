"""JSON generation under masks: speed relative to free text of the same model, and validity of the results."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from ...constrain import GrammarError, JsonSchema, MatcherError, Vocabulary
from ...constrain.compiler import compile_grammar
from ...constrain.json_schema.validate import violations
from ...constrain.matchers.interface import Grammar
from ...constrain.vocabulary.token_table import TokenTable
from ...runtime.client.llm import LLM, CompletionOutput
from ...runtime.protocol.sampling_params import SamplingParams
from .cases import SchemaCase

BATCH = 16
TEMPERATURE = 1.5
SOON_S = 1.0
_PROMPT = "Write the JSON document that was asked for. Number {number}.\n"

RECORDS = [json.dumps(schema) for schema in json.loads(Path(__file__).with_name("records.json").read_text())]
"""Schemas as applications ask for them: records with names that are longer than their values."""


class Speed(msgspec.Struct):
    """Output tokens a second in each round, with masks and without, and how many of the JSON texts validate."""

    json_tokens_per_s: list[float]
    free_tokens_per_s: list[float]
    num_json_tokens: int
    valid: int
    total: int

    @property
    def ratios(self) -> list[float]:
        return [ours / free for ours, free in zip(self.json_tokens_per_s, self.free_tokens_per_s, strict=True)]


def measure_speed(llm: LLM, *, rounds: int) -> Speed:
    """Batches of JSON and of free text in turn, as many tokens of free text as the JSON took."""
    specs = [JsonSchema(RECORDS[number % len(RECORDS)], property_order="schema") for number in range(BATCH)]
    speed = Speed([], [], 0, 0, 0)
    for number in range(-1, rounds):  # the first warms up
        prompts = [_PROMPT.format(number=f"{number} {index}") for index in range(BATCH)]
        params = [SamplingParams(temperature=0.8, seed=index, max_tokens=256) for index in range(BATCH)]
        outputs, json_s = generated(llm, prompts, params, specs)
        counts = [len(output.token_ids) for output in outputs]
        params = [structs.replace(each, max_tokens=n, ignore_eos=True) for each, n in zip(params, counts, strict=True)]
        free, free_s = generated(llm, [prompt + "-" for prompt in prompts], params)
        if number < 0:
            continue
        speed.json_tokens_per_s.append(sum(counts) / json_s)
        speed.free_tokens_per_s.append(sum(len(output.token_ids) for output in free) / free_s)
        speed.num_json_tokens += sum(counts)
        speed.total += BATCH
        answers = zip(specs, outputs, strict=True)
        speed.valid += sum(not violations(spec.schema, output.text) for spec, output in answers)
    return speed


def generated(
    llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams], specs: Sequence[JsonSchema] | None = None
) -> tuple[list[CompletionOutput], float]:
    """The outputs, and the seconds until the last."""
    started = time.perf_counter()
    results = llm.generate(prompts, params, grammar=specs, use_tqdm=False)
    return [result.outputs[0] for result in results], time.perf_counter() - started


class Samples(msgspec.Struct):
    """Outputs that were drawn under random schemas, and those that do not validate."""

    total: int = 0
    schemas: int = 0
    unfinished: int = 0
    wrong: list[tuple[str, str]] = []


def draw_word(grammar: Grammar, vocabulary: Vocabulary, rng: random.Random, max_tokens: int) -> str | None:
    """A word of tokens each drawn evenly from those allowed, led to its end by the budget; None if it did not fit.
    Raises MatcherError: the masks led to a dead end."""
    matcher = grammar.matcher()
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    taken: list[int] = []
    for remaining in reversed(range(max(max_tokens, 2 * (grammar.min_tokens() or 0) + 8))):
        if matcher.finished:
            break
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = matcher.accept(int(allowed[rng.randrange(len(allowed))]), remaining)
        if token in vocabulary.eos_ids:
            break
        taken.append(token)
    text = b"".join(vocabulary.tokens[token] or b"" for token in taken).decode(errors="replace")
    whole = matcher.accepting and not matcher.closed
    return text if whole else None


def sample_masks(cases: Sequence[SchemaCase], vocabulary: Vocabulary, count: int, *, seed: int = 0) -> Samples:
    """Outputs of a model that finds every token equally likely: it goes wherever the masks let it."""
    rng = random.Random(seed)
    grammars = _compiled(cases, vocabulary)
    samples = Samples(schemas=len(grammars))
    while grammars and samples.total < count:
        case, grammar = rng.choice(grammars)
        try:
            text = draw_word(grammar, vocabulary, rng, 64)
        except MatcherError as error:
            samples.wrong.append((case.name, f"dead end: {error}"))
            continue
        samples.total += 1
        _judge(samples, case, text)
    return samples


def sample_model(cases: Iterable[SchemaCase], llm: LLM, count: int, *, seed: int = 0) -> Samples:
    """Outputs of the engine at a temperature that makes nonsense of the model, so far as the masks allow."""
    tokenizer = llm.get_tokenizer()
    grammars = _compiled(cases, tokenizer.vocabulary(tokenizer.vocab_size), soon_s=SOON_S)
    rng = random.Random(seed)
    chosen = [rng.choice(grammars) for _ in range(count)]
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=max(64, 2 * (grammar.min_tokens() or 0) + 16), seed=index)
        for index, (_, grammar) in enumerate(chosen)
    ]
    specs = [JsonSchema(case.schema) for case, _ in chosen]
    outputs, _ = generated(llm, [_PROMPT.format(number=0)] * count, params, specs)
    samples = Samples(total=count, schemas=len(grammars))
    for (case, _), output in zip(chosen, outputs, strict=True):
        _judge(samples, case, output.text)
    return samples


def _compiled(
    cases: Iterable[SchemaCase], vocabulary: Vocabulary, *, soon_s: float = float("inf")
) -> list[tuple[SchemaCase, Grammar]]:
    """The cases that compile within `soon_s`: the engine may refuse others for taking too long."""
    table = TokenTable(vocabulary)
    found = []
    for case in cases:
        started = time.perf_counter()
        with contextlib.suppress(GrammarError):
            grammar = compile_grammar(JsonSchema(case.schema), table)
            if time.perf_counter() - started <= soon_s:
                found.append((case, grammar))
    return found


def _judge(samples: Samples, case: SchemaCase, text: str | None) -> None:
    if text is None:
        samples.unfinished += 1
    elif found := violations(case.schema, text):
        samples.wrong.append((case.name, f"{text}: {found[0].message}"))
