"""Compares masks with the verdicts of a validator on random schemas: nothing that is let through may be invalid."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from bough.benchmarks.constrain.generate import draw_word
from bough.benchmarks.constrain.sides import passes_check
from bough.constrain import GrammarError, JsonSchema, MatcherError, Vocabulary, grammar_accepts
from bough.constrain.compiler import compile_grammar
from bough.constrain.matchers.interface import Grammar
from bough.constrain.vocabulary.token_table import TokenTable
from bough.runtime.models.load import locate
from bough.runtime.tokenizer.load import load_tokenizer

from .random_schemas import DRAFTS, Schemas
from .shrink import shrink
from .values import Values, layouts

DRAFT_SHARES = {2020: 80, 2019: 6, 7: 8, 6: 3, 4: 3}
_VALIDATORS: dict[int, Any] = {
    # 1.0 is an integer in every draft here, as real schemas of draft 4 expect.
    4: jsonschema.validators.extend(jsonschema.Draft4Validator, type_checker=jsonschema.Draft6Validator.TYPE_CHECKER),
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}


@dataclass(frozen=True)
class Finding:
    """A text on which mask and validator do not agree. `kind`: "unsound", "over", or "broken": it ended in an error."""

    kind: str
    seed: int
    schema: str
    text: str
    note: str = ""


@dataclass
class Tally:
    """Counts of a run.

    over    canonical texts of valid values that were not let through, of `valid`
    words   texts drawn from the masks themselves, of which each must be valid
    """

    schemas: int = 0
    refused: int = 0
    pairs: int = 0
    valid: int = 0
    accepted: int = 0
    over: int = 0
    words: int = 0
    unfinished: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def of(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def __str__(self) -> str:
        unsound, broken = len(self.of("unsound")), len(self.of("broken"))
        over, refused = 100 * self.over / max(self.valid, 1), 100 * self.refused / max(self.schemas, 1)
        return (
            f"{self.pairs} pairs of {self.schemas} schemas: {unsound} unsound, {broken} broken; "
            f"{self.accepted} accepted, {self.over} of {self.valid} valid ones not ({over:.2f} %); "
            f"{self.refused} schemas refused ({refused:.1f} %); "
            f"{self.words} words drawn from masks, {self.unfinished} of them unfinished"
        )


class Fuzzer:
    """Tries schema after schema; each has a seed of its own, by which it can be tried again."""

    def __init__(self, vocabulary: Vocabulary, *, pairs: int = 20, words: int = 3) -> None:
        self._vocabulary = vocabulary
        self._table = TokenTable(vocabulary)
        self._pairs = pairs
        self._words = words
        self.tally = Tally()

    def try_schema(self, seed: int) -> None:
        """One schema of the seed, with its pairs and words."""
        rng = random.Random(seed)
        draft = rng.choices(list(DRAFT_SHARES), weights=list(DRAFT_SHARES.values()))[0]
        schema = Schemas(rng, draft).root()
        self.judge(seed, schema, draft, rng)

    def judge(self, seed: int, schema: Any, draft: int, rng: random.Random) -> None:
        tally, text = self.tally, json.dumps(schema)
        tally.schemas += 1
        validator = _VALIDATORS[draft](schema)
        try:
            grammar = compile_grammar(JsonSchema(text), self._table)
        except GrammarError as error:
            tally.refused += 1
            impossible = error.code == "invalid_json_schema"
            tally.reasons[f"{error.code}: {error.reason}"[:110]] += 1
            if impossible:  # then no value at all may be valid
                self._check_impossible(seed, schema, validator, rng)
            return
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            tally.findings.append(Finding("broken", seed, text, "", f"{type(error).__name__}: {error}"[:300]))
            return
        self._try_pairs(seed, text, grammar, validator, Values(rng, schema), rng)
        for _ in range(self._words):
            self._try_word(seed, text, grammar, validator, rng)

    def _try_pairs(
        self, seed: int, schema: str, grammar: Grammar, validator: Any, values: Values, rng: random.Random
    ) -> None:
        tally, done = self.tally, 0
        while done < self._pairs:
            for text, canonical in layouts(values.near(), rng):
                done += 1
                tally.pairs += 1
                valid = bool(validator.is_valid(json.loads(text)))
                try:
                    accepted = self._accepts(grammar, JsonSchema(schema), text)
                except MatcherError as error:
                    tally.findings.append(Finding("broken", seed, schema, text, f"dead end: {error}"))
                    continue
                tally.accepted += accepted
                tally.valid += valid and canonical
                if accepted and not valid:
                    tally.findings.append(Finding("unsound", seed, schema, text))
                if valid and canonical and not accepted:
                    tally.over += 1
                    tally.findings.append(Finding("over", seed, schema, text))

    def _try_word(self, seed: int, schema: str, grammar: Grammar, validator: Any, rng: random.Random) -> None:
        try:
            text = draw_word(grammar, self._vocabulary, rng, 60)
        except MatcherError as error:
            self.tally.findings.append(Finding("broken", seed, schema, "", f"dead end: {error}"))
            return
        self.tally.words += 1
        if text is None:
            self.tally.unfinished += 1
        elif not _is_valid(validator, text) and passes_check(grammar, JsonSchema(schema), text):
            self.tally.findings.append(Finding("unsound", seed, schema, text, "drawn from the masks"))

    def shrink(self, finding: Finding) -> Finding:
        """The finding with as little of its schema and its value as still shows it, where a value does."""
        schema = json.loads(finding.schema)
        draft = next((draft for draft, uri in DRAFTS.items() if uri == schema.get("$schema")), 2020)

        def shows(schema: Any, value: Any) -> bool:
            try:
                _VALIDATORS[draft].check_schema(schema)
                valid = bool(_VALIDATORS[draft](schema).is_valid(value))
                spec = JsonSchema(json.dumps(schema))
                grammar = compile_grammar(spec, self._table)
                accepted = self._accepts(grammar, spec, json.dumps(value, ensure_ascii=False))
            except GrammarError as error:
                return finding.kind == "broken" and valid and error.code == "invalid_json_schema"
            except MatcherError:
                return finding.kind == "broken"
            except Exception:  # noqa: BLE001  whatever it is, it is not what was found
                return False
            return (
                (accepted and not valid) if finding.kind == "unsound" else finding.kind == "over" and valid > accepted
            )

        try:
            value = json.loads(finding.text)
        except ValueError:
            return finding
        if not shows(schema, value):
            return finding
        schema, value = shrink(schema, value, shows)
        text = json.dumps(value, ensure_ascii=False)
        return Finding(finding.kind, finding.seed, json.dumps(schema), text, finding.note)

    def _accepts(self, grammar: Grammar, spec: JsonSchema, text: str) -> bool:
        return grammar_accepts(grammar, text, self._vocabulary) and passes_check(grammar, spec, text)

    def _check_impossible(self, seed: int, schema: Any, validator: Any, rng: random.Random) -> None:
        values = Values(rng, schema)
        for _ in range(self._pairs):
            text, _ = next(layouts(values.near(), rng))
            if validator.is_valid(json.loads(text)):
                finding = Finding("broken", seed, json.dumps(schema), text, "refused as impossible, and this is valid")
                self.tally.findings.append(finding)
                return


def _is_valid(validator: Any, text: str) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except ValueError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constrain.search.fuzz", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--per-schema", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first schema; each further one has the next")
    parser.add_argument("--schemas", type=int, help="at most so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings")
    parser.add_argument("--shrink", action="store_true", help="show findings again, made as small as they go")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what was valid and not let through, too")
    arguments = parser.parse_args(argv)
    tokenizer = load_tokenizer(locate(arguments.model))
    fuzzer = Fuzzer(tokenizer.vocabulary(tokenizer.vocab_size), pairs=arguments.per_schema)
    num_schemas = arguments.schemas or sys.maxsize
    tally = run(fuzzer, arguments.seed, arguments.pairs, num_schemas, arguments.seconds, _show)
    print(tally)
    for reason, count in tally.reasons.most_common(25):
        print(f"  {count:6} refused: {reason}")
    if arguments.verbose:
        for finding in {finding.seed: finding for finding in tally.of("over")}.values():
            _show(finding)
    if arguments.shrink:
        for finding in {(finding.kind, finding.seed): finding for finding in tally.findings}.values():
            _show(fuzzer.shrink(finding))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([vars(finding) for finding in tally.findings], indent=1) + "\n")
    return 1 if tally.of("unsound") or tally.of("broken") else 0


def run(
    fuzzer: Fuzzer,
    seed: int,
    num_pairs: int,
    num_schemas: int = sys.maxsize,
    seconds: float = float("inf"),
    show: Callable[[Finding], None] | None = None,
) -> Tally:
    """Schemas of the seeds from `seed` on, until one of the three limits is reached."""
    stop = time.monotonic() + seconds
    tally = fuzzer.tally
    while tally.pairs < num_pairs and tally.schemas < num_schemas and time.monotonic() < stop:
        before = len(tally.findings)
        fuzzer.try_schema(seed)
        seed += 1
        if show is not None:
            for finding in tally.findings[before:]:
                if finding.kind != "over":
                    show(finding)
    return tally


def _show(finding: Finding) -> None:
    print(
        f"{finding.kind.upper()} seed {finding.seed} {finding.note}\n    {finding.schema}\n    {finding.text}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
