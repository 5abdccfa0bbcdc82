"""Promise: what is generated under a schema validates, however hot; and what is cut short still parses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bough.constrain import GrammarCompiler, GrammarError
from bough.constrain.spec import JsonSchema
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.sampling_params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = "An example of the JSON document that was asked for:\n"
TEMPERATURE = 1.5


@dataclass(frozen=True)
class Case:
    """A schema, and the tokens of a short text that it accepts."""

    name: str
    schema: Any
    spec: JsonSchema
    min_tokens: int


@dataclass(frozen=True)
class Answer:
    case: Case
    max_tokens: int
    text: str
    finish_reason: str | None

    def __str__(self) -> str:
        return f"{self.case.name} in {self.max_tokens} tokens ({self.finish_reason}): {self.text!r}"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(max_num_seqs=64, num_pages=40_000)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def cases(full: bool, llm: LLM) -> list[Case]:
    """Our own schemas; or 100 of the folder that BOUGH_ACCEPTANCE_SCHEMAS names, from all of its sets alike."""
    folder = os.environ.get("BOUGH_ACCEPTANCE_SCHEMAS", "")
    if full and folder:
        schemas = _spread(sorted(Path(folder).glob("*.json")))
        count = 100
    else:
        schemas = iter(json.loads(Path(__file__).with_name("schemas.json").read_text()).items())
        count = 10
    tokenizer = llm.get_tokenizer()
    compiler = GrammarCompiler(tokenizer.vocabulary(tokenizer.vocab_size), timeout_s=60)
    cases: list[Case] = []
    try:
        for name, schema in schemas:
            spec = JsonSchema(json.dumps(schema))
            try:
                min_tokens = compiler.compile(spec).min_tokens()
            except GrammarError:  # refused by name, which is the other half of the promise
                continue
            cases.append(Case(name, schema, spec, min_tokens or 0))
            if len(cases) == count:
                break
    finally:
        compiler.close()
    assert len(cases) == count
    return cases


def _spread(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    """The schemas of a folder, one of each set in turn; a file's name begins with the name of its set."""
    sets: dict[str, list[Path]] = {}
    for path in paths:
        sets.setdefault(path.stem.partition("---")[0].rstrip("0123456789"), []).append(path)
    for path in chain.from_iterable(zip_longest(*sets.values())):
        if path is not None:
            yield path.stem, json.loads(path.read_text())["schema"]


def generate(llm: LLM, jobs: list[tuple[Case, int]]) -> list[Answer]:
    """Generates an answer for each (case, max_tokens), all of them at once."""
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=max_tokens, seed=seed)
        for seed, (_, max_tokens) in enumerate(jobs)
    ]
    results = llm.generate([PROMPT] * len(jobs), params, grammar=[case.spec for case, _ in jobs], use_tqdm=False)
    outputs = [result.outputs[0] for result in results]
    return [
        Answer(case, max_tokens, output.text, output.finish_reason)
        for (case, max_tokens), output in zip(jobs, outputs, strict=True)
    ]


def validates(answer: Answer) -> bool:
    kind = jsonschema.validators.validator_for(answer.case.schema, default=jsonschema.Draft202012Validator)
    try:
        return bool(kind(answer.case.schema).is_valid(json.loads(answer.text)))
    except ValueError:
        return False


def parses(answer: Answer) -> bool:
    try:
        json.loads(answer.text)
    except ValueError:
        return False
    return True


def test_what_has_room_validates(full: bool, llm: LLM, cases: list[Case], figures: Callable[[str], None]) -> None:
    rounds = 1000 // len(cases) if full else 4
    jobs = [(case, max(192 if full else 64, 2 * case.min_tokens + 32)) for case in cases for _ in range(rounds)]
    answers = generate(llm, jobs)
    wrong = [str(answer) for answer in answers if not validates(answer)]
    whole = sum(answer.finish_reason == "stop" for answer in answers)
    figures(
        f"{len(answers) - len(wrong)} of {len(answers)} answers over {len(cases)} schemas validate at temperature "
        f"{TEMPERATURE}; {whole} ended by themselves, the others were led to an end by the limit"
    )
    assert wrong == []


def test_what_is_cut_short_parses(full: bool, llm: LLM, cases: list[Case], figures: Callable[[str], None]) -> None:
    rounds = 1000 // len(cases) if full else 4
    jobs = [(case, 1 + (7 * number + 3 * index) % 40) for index, case in enumerate(cases) for number in range(rounds)]
    answers = generate(llm, jobs)
    wrong = [str(answer) for answer in answers if not parses(answer)]
    cut = sum(answer.finish_reason == "length" for answer in answers)
    figures(f"{len(answers) - len(wrong)} of {len(answers)} answers parse; the limit cut {cut} of them short")
    assert wrong == []
    assert cut > len(answers) // 3, "the limits are too generous to test anything"


def test_a_wrong_answer_would_be_seen() -> None:
    case = Case("one", {"type": "integer"}, JsonSchema("{}"), 1)
    texts = {"1": (True, True), '"1"': (False, True), "[1": (False, False), "": (False, False)}
    answers = {text: Answer(case, 8, text, "stop") for text in texts}
    assert {text: (validates(answer), parses(answer)) for text, answer in answers.items()} == texts
