"""Masks allow in texts with marked parts what a plain reading of the whole text allows, however it is cut."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import numpy as np
import pytest
import regex

from bough.constrain.errors import GrammarError, GrammarTooComplexError, MatcherError
from bough.constrain.lower import lower
from bough.constrain.lowered import Lowered
from bough.constrain.matchers.interface import Matcher
from bough.constrain.matchers.tagged import compile as structural_grammar
from bough.constrain.matchers.tagged import matcher as structural_matcher
from bough.constrain.matchers.tagged.compile import compile_structural
from bough.constrain.matchers.tagged.matcher import FreeText, StructuralGrammar
from bough.constrain.receipt import MAX_POINTERS_CHARS, Policy, Receipt
from bough.constrain.spec import Choice, JsonSchema, Lark, Regex, Structural, Tag
from bough.constrain.vocabulary.token_table import TokenTable
from bough.constrain.vocabulary.triggers import Triggers, to_symbols
from bough.constrain.vocabulary.vocabulary import Vocabulary

EOS, CALL, OTHER = 0, 1, 2
CALL_NAME = "[CALL]"
CALL_CHAR, OTHER_CHAR = "\ue001", "\ue002"
"""Characters that stand for control tokens in the reference's text."""

MakeTokens = Callable[[int], TokenTable]

ALPHABET = "<t>/ab12{}\n"
PIECES = ("<t>", "</t>", "<t", "t>", "a", "1", "b", ">a", "a<", "<u>", "</", "\n")


@pytest.fixture(scope="session")
def make_tokens(greedy: Callable[[Sequence[bytes | None]], Callable[[str], list[int]]]) -> MakeTokens:
    """Random tokens of a seed."""
    return lambda seed: _make_tokens(seed, greedy)


def _make_tokens(seed: int, greedy: Callable[[Sequence[bytes | None]], Callable[[str], list[int]]]) -> TokenTable:
    rng = random.Random(seed)
    texts = dict.fromkeys(ALPHABET + "u")
    texts |= dict.fromkeys("".join(rng.choices(PIECES, k=rng.randint(2, 5))) for _ in range(60))
    texts |= dict.fromkeys(("<t>", "</t>", "<t>1", "1</t>", "</t><t>", "</t>a<t>1", "</t><t>b<t>", "a<t>ab</t>b<t>/"))
    tokens = (None, None, None, *(text.encode() for text in texts))
    control = {CALL_NAME: CALL, "[END]": EOS}
    encode = greedy(tokens)
    return TokenTable(Vocabulary(tokens=tokens, eos_ids=(EOS,), size=len(tokens) + 5, encode=encode, control=control))


@dataclass(frozen=True)
class Case:
    """A spec, and the contents of its tags as regular expressions."""

    spec: Structural
    contents: tuple[str, ...]


NUMBER = JsonSchema('{"type": "integer", "minimum": 1, "maximum": 12}', property_order="schema")
NUMBER_TEXT = "1[0-2]?|[2-9]"
TEXT = r"[^\ue001\ue002]*"
AB = (Tag("<t>", Regex("[ab]+"), "</t>"),)
CASES = {
    "regex": Case(Structural(AB, ("<t>",)), ("[ab]+",)),
    "trigger is half of the beginning": Case(Structural(AB, ("<",)), ("[ab]+",)),
    "no trigger given": Case(Structural(AB), ("[ab]+",)),
    "at least one": Case(Structural(AB, ("<t",), at_least_one=True), ("[ab]+",)),
    "one only": Case(Structural(AB, ("<t>",), stop_after_first=True), ("[ab]+",)),
    "exactly one": Case(Structural(AB, ("<t>",), at_least_one=True, stop_after_first=True), ("[ab]+",)),
    "nothing but tags": Case(Structural(AB, free_text=False, at_least_one=True), ("[ab]+",)),
    "nothing but tags, perhaps none": Case(Structural(AB, free_text=False), ("[ab]+",)),
    "nothing but a tag": Case(Structural(AB, free_text=False, at_least_one=True, stop_after_first=True), ("[ab]+",)),
    "any content": Case(Structural((Tag("<t>", None, "</t>"),), ("<t>",)), (TEXT,)),
    "content that may hold the end": Case(
        Structural((Tag("<t>", Regex("[^1]*"), "</t>"),), ("<t>",)), (r"[^1\ue001\ue002]*",)
    ),
    "no end": Case(Structural((Tag("<t>", Regex("[ab]+1"), ""),), ("<t>",)), ("[ab]+1",)),
    "content that may go on": Case(Structural((Tag("<t>", Regex("[ab]+"), ""),), ("<t>",)), ("[ab]+",)),
    "JSON": Case(Structural((Tag("<t>", NUMBER, "</t>"),), ("<t>",)), (NUMBER_TEXT,)),
    "JSON without an end": Case(Structural((Tag("<t>", NUMBER, ""),), ("<t>",)), (NUMBER_TEXT,)),
    "a grammar": Case(Structural((Tag("<t>", Lark('start: "a" "b"? | "1"'), "</t>"),), ("<t>",)), ("ab?|1",)),
    "several": Case(
        Structural((Tag("<t>", NUMBER, "</t>"), Tag("<u>", Choice(("a", "ab", "b1")), "</")), ("<t>", "<u>")),
        (NUMBER_TEXT, "a|ab|b1"),
    ),
    "several behind one trigger": Case(
        Structural(
            (Tag("<t>", NUMBER, "</t>"), Tag("<u>", Choice(("a", "ab", "b1")), "</")), ("<",), at_least_one=True
        ),
        (NUMBER_TEXT, "a|ab|b1"),
    ),
    "triggers that overlap": Case(
        Structural((Tag("<t>", Regex("[ab]+"), "<"), Tag("t>1", Regex("a1?"), "2")), ("<t>", "t>1")), ("[ab]+", "a1?")
    ),
    "triggers that end together": Case(
        Structural((Tag("<t>a", Regex("1+"), ">"), Tag("t>b", Regex("2+"), "<")), ("<t>", "t>")), ("1+", "2+")
    ),
    "a control token": Case(
        Structural((Tag(CALL_NAME, NUMBER, ""), Tag(CALL_NAME + "a", Regex("b+"), CALL_NAME)), (CALL_NAME,)),
        (NUMBER_TEXT, "b+"),
    ),
    "any content up to a control token": Case(Structural((Tag("<t>", None, "a" + CALL_NAME),), ("<t>",)), (TEXT,)),
    "reasoning, then tags": Case(Structural(AB, ("<t>",), reasoning_end="</t>"), ("[ab]+",)),
    "reasoning, then a tag": Case(Structural(AB, ("<t>",), at_least_one=True, reasoning_end="</t>"), ("[ab]+",)),
    "reasoning, then nothing but tags": Case(
        Structural(AB, free_text=False, at_least_one=True, reasoning_end="a</t>"), ("[ab]+",)
    ),
    "reasoning, then a value": Case(Structural(reasoning_end="</t>", then=NUMBER), (NUMBER_TEXT,)),
    "reasoning alone": Case(Structural(reasoning_end="</t>"), ()),
}


def read(case: Case, text: str) -> tuple[bool, bool]:
    """Tells whether a text can go on to be a whole one, and whether it is one."""
    spec = case.spec
    contents = [f"(?:{content})" for content in case.contents]
    if spec.reasoning_end is not None:
        end = text.find(spec.reasoning_end)
        if end < 0:
            needs = spec.then is not None or spec.at_least_one
            return True, not needs
        text = text[end + len(spec.reasoning_end) :]
    newlines = "\n{0,2}" if spec.reasoning_end is not None else ""
    if spec.then is not None:
        return matches(newlines + contents[0], text)
    tags = [(named(tag.begin), content, named(tag.end)) for tag, content in zip(spec.tags, contents, strict=True)]
    if not tags:
        return True, True
    if not spec.free_text:
        one = "|".join(regex.escape(begin) + content + regex.escape(end) for begin, content, end in tags)
        most = "" if spec.stop_after_first else ","
        return matches(f"{newlines}(?:{one}){{{int(spec.at_least_one)}{most if most else ',1'}}}", text)
    return read_free(spec, tags, text)


def read_free(spec: Structural, tags: list[tuple[str, str, str]], text: str) -> tuple[bool, bool]:
    triggers = [named(trigger) for trigger in spec.triggers] or [begin for begin, _, _ in tags]
    start, num_tags = 0, 0
    while True:
        ends = [text.find(trigger, start) + len(trigger) for trigger in triggers if trigger in text[start:]]
        if not ends:
            return True, num_tags > 0 or not spec.at_least_one
        stop = min(ends)
        begun = [trigger for trigger in triggers if text[start:stop].endswith(trigger)]
        rests = [(b[len(t) :], c, e) for b, c, e in tags for t in begun if b.startswith(t)]
        patterns = [regex.escape(rest) + content + regex.escape(end) for rest, content, end in rests]
        if spec.stop_after_first:
            return matches("|".join(patterns), text[stop:])
        whole = "|".join(patterns)
        after = next((end for end in range(stop, len(text) + 1) if matches(whole, text[stop:end])[1]), None)
        if after is None:
            return matches(whole, text[stop:])[0], False
        start, num_tags = after, num_tags + 1


def matches(pattern: str, text: str) -> tuple[bool, bool]:
    found = regex.fullmatch(pattern, text, partial=True)
    return found is not None, regex.fullmatch(pattern, text) is not None


def named(mark: str) -> str:
    return mark.replace(CALL_NAME, CALL_CHAR)


def char_text(tokens: TokenTable, token: int) -> str:
    if token in (CALL, OTHER):
        return CALL_CHAR if token == CALL else OTHER_CHAR
    return (tokens.vocabulary.tokens[token] or b"").decode()


def compiled(spec: Structural, tokens: TokenTable) -> StructuralGrammar:
    return compile_structural(spec, tokens, lower)


def allowed(matcher: Matcher, tokens: TokenTable) -> set[int]:
    row = np.zeros(tokens.num_words, dtype=np.int32)
    matcher.fill_mask(row)
    found = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return {int(token) for token in found}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_masks_are_what_a_reading_of_the_text_allows(name: str, seed: int, make_tokens: MakeTokens) -> None:
    case, tokens, rng = CASES[name], make_tokens(seed), random.Random(seed)
    grammar = compiled(case.spec, tokens)
    ids = range(len(tokens.vocabulary.tokens))
    for _ in range(4):
        matcher, text = grammar.matcher(), ""
        for _ in range(10):
            expected = {token for token in ids if token != EOS and read(case, text + char_text(tokens, token))[0]}
            whole = read(case, text)[1]
            found = allowed(matcher, tokens)
            if len(found) > 1 or not matcher.forced_tokens():  # else only the model's own token for it is allowed
                assert {token for token in found if token < len(ids) and token != EOS} == expected, repr(text)
            assert not found - expected - {EOS, *range(len(ids), tokens.vocabulary.size)}, repr(text)
            assert (EOS in found) == matcher.accepting == whole, repr(text)
            assert matcher.finished == (whole and not expected)
            if matcher.free:
                assert found == set(range(tokens.vocabulary.size))
            refused = [token for token in ids if token not in expected and token != EOS]
            for token in rng.sample(refused, min(len(refused), 3)):
                with pytest.raises(MatcherError):
                    matcher.accept(token)
                assert allowed(matcher, tokens) == found
            if not expected:
                break
            marked = [
                token for token in sorted(expected) if any(mark in char_text(tokens, token) for mark in "<>\ue001")
            ]
            token = rng.choice(marked if marked and rng.random() < 0.6 else sorted(expected))
            assert matcher.accept(token) == token
            text += char_text(tokens, token)


@pytest.mark.parametrize("name", CASES)
def test_rollback_and_copies(name: str, make_tokens: MakeTokens) -> None:
    tokens, rng = make_tokens(7), random.Random(7)
    grammar = compiled(CASES[name].spec, tokens)
    for _ in range(6):
        matcher = grammar.matcher()
        seen = [(allowed(matcher, tokens), matcher.accepting)]
        for _ in range(12):
            choices = sorted(token for token in seen[-1][0] - {EOS} if token < len(tokens.vocabulary.tokens))
            if not choices:
                break
            marked = [token for token in choices if "<" in char_text(tokens, token)]
            matcher.accept(rng.choice(marked or choices))
            seen.append((allowed(matcher, tokens), matcher.accepting))
        fork = matcher.copy()
        back = rng.randint(0, len(seen) - 1)
        matcher.rollback(back)
        assert (allowed(matcher, tokens), matcher.accepting) == seen[len(seen) - 1 - back]
        for number, expected in reversed(list(enumerate(seen))):
            assert (allowed(fork, tokens), fork.accepting) == expected
            if number:
                fork.rollback(1)
        assert (allowed(matcher, tokens), matcher.accepting) == seen[len(seen) - 1 - back]
        with pytest.raises(MatcherError):
            fork.rollback(1)


@pytest.mark.parametrize("budget", [0, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_reasoning_ends_within_its_budget(budget: int, seed: int, make_tokens: MakeTokens) -> None:
    """Tokens are as free as without a budget, until nothing but the end is allowed; then comes what is constrained."""
    tokens, rng = make_tokens(seed), random.Random(seed)
    num_last = max(len(tokens.encode(b"</t>"[start:])) for start in range(4))
    grammar = compiled(Structural(reasoning_end="</t>", reasoning_budget=budget, then=NUMBER), tokens)
    plain = compiled(Structural(reasoning_end="</t>", then=NUMBER), tokens).matcher()
    for _ in range(12):
        matcher, text, masks = grammar.matcher(), "", list[set[int]]()
        while "</t>" not in text:
            masks.append(allowed(matcher, tokens))
            if len(matcher.taken) < budget - num_last:
                assert matcher.forced_tokens() == []
                assert masks[-1] == allowed(follow(plain, matcher.taken), tokens)
            else:
                assert len(masks[-1]) == 1 and masks[-1] == {matcher.forced_tokens()[0]}
                assert not matcher.free and not matcher.accepting
                with pytest.raises(MatcherError):
                    matcher.accept(EOS)
            choices = sorted(masks[-1] & set(range(EOS + 1, len(tokens.vocabulary.tokens))))
            unfinished = [token for token in choices if ">" not in char_text(tokens, token)]
            token = rng.choice(unfinished or choices)
            assert matcher.accept(token) == token
            text += char_text(tokens, token)
        assert len(matcher.taken) <= max(budget, num_last)
        fork = matcher.copy()
        assert allowed(fork, tokens) == allowed(follow(plain, matcher.taken), tokens)
        for number, mask in enumerate(reversed(masks), start=1):
            matcher.rollback(1)
            assert allowed(matcher, tokens) == mask, number


def follow(matcher: Matcher, taken: Sequence[int]) -> Matcher:
    trial = matcher.copy()
    for token in taken:
        trial.accept(token)
    return trial


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_a_budget_is_kept(name: str, seed: int, make_tokens: MakeTokens) -> None:
    case, tokens, rng = CASES[name], make_tokens(seed), random.Random(seed)
    grammar = compiled(case.spec, tokens)
    for _ in range(12):
        budget = (grammar.min_tokens() or 0) + rng.randint(6, 14)
        matcher, text = grammar.matcher(), ""
        for remaining in reversed(range(budget)):
            choices = sorted(token for token in allowed(matcher, tokens) if token < len(tokens.vocabulary.tokens))
            token = matcher.accept(rng.choice(choices), remaining)
            if token == EOS:
                break
            text += char_text(tokens, token)
            if matcher.finished:
                break
        assert matcher.accepting, repr(text)
        assert read(case, text)[1]


def test_free_text_needs_no_mask(make_tokens: MakeTokens) -> None:
    tokens = make_tokens(0)
    spaced = TokenTable(
        Vocabulary(
            tokens=(None, *(text.encode() for text in (*ALPHABET, "<t>", "ab")), None),
            eos_ids=(0,),
            size=len(ALPHABET) + 5,
            encode=lambda text: [1 + ALPHABET.index(char) for char in text],
        )
    )
    matcher = compiled(CASES["regex"].spec, spaced).matcher()
    mask = np.zeros(spaced.num_words, dtype=np.int32)
    assert matcher.free
    for char in "ab<a<t/<t":
        matcher.fill_mask(mask)  # whoever first comes to a state finds out
        assert matcher.free and matcher.accepting and (mask == matcher.grammar.everything).all()
        matcher.accept(1 + ALPHABET.index(char))
        if char in "ab":
            assert matcher.free
    matcher.fill_mask(mask)
    assert matcher.free
    matcher.accept(1 + ALPHABET.index(">"))
    assert not matcher.free and not matcher.accepting
    for char in "ab</t>":
        matcher.accept(1 + ALPHABET.index(char))
    assert matcher.free and matcher.accepting
    assert not compiled(CASES["at least one"].spec, tokens).matcher().free


def test_the_beginning_and_the_end_of_a_tag_are_forced(make_tokens: MakeTokens) -> None:
    tokens = make_tokens(0)
    matcher = compiled(Structural((Tag("<t>a", Choice(("b1",)), "</t>"),), ("<t",)), tokens).matcher()
    for token in tokens.encode(b"<t"):
        matcher.accept(token)
    taken = b""
    while forced := matcher.forced_tokens():
        for token in forced:
            matcher.accept(token)
        taken += tokens.text(forced)
    assert b">ab1</t>".startswith(taken) and len(taken) >= 3


REFUSED = {
    "/tags": Structural(),
    "/then": Structural(AB, then=NUMBER),
    "/tags/0/begin": Structural(AB, ("x",)),
    "/tags/0/end": Structural((Tag("<t>", None, ""),)),
    "/triggers": Structural(AB, ("<t>", "x", "<")[:2]),
    "/triggers/0": Structural(AB, ("",)),
    "/tags/1/end": Structural((*AB, Tag("<t>", NUMBER, "[END]"))),
    "/tags/0/content": Structural((Tag("<t>", Choice(()), "</t>"),)),
    "/reasoning_end": Structural(AB, reasoning_end=""),
    "/reasoning_budget": Structural(AB, reasoning_budget=9),
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_wrong_has_a_place(path: str, make_tokens: MakeTokens) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(REFUSED[path], make_tokens(0))
    assert caught.value.path == path
    assert str(caught.value).endswith(f"(at {path})")


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (Structural(AB, ("<", "é" * 513)), "/triggers/1"),
        (Structural((*AB, Tag("<t>" + "é" * 511, NUMBER, ""))), "/tags/1/begin"),
        (Structural((*AB, *(Tag(f"<t>{number:03}{'a' * 1_000}", NUMBER, "") for number in range(80)))), None),
    ],
)
def test_marks_are_few_bytes(spec: Structural, path: str | None, make_tokens: MakeTokens) -> None:
    with pytest.raises(GrammarError, match="bytes") as caught:
        compiled(spec, make_tokens(0))
    assert path is None or caught.value.path == path


def test_what_too_many_tokens_hold_is_no_trigger(monkeypatch: pytest.MonkeyPatch, make_tokens: MakeTokens) -> None:
    monkeypatch.setattr(structural_grammar, "MAX_SUSPECTS", 5)
    for path, spec in (("/triggers", Structural(AB, ("<",))), ("/reasoning_end", Structural(reasoning_end="t"))):
        with pytest.raises(GrammarTooComplexError, match="make it longer") as caught:
            compiled(spec, make_tokens(0))
        assert caught.value.path == path


def test_rows_that_are_kept_are_few(monkeypatch: pytest.MonkeyPatch, make_tokens: MakeTokens) -> None:
    monkeypatch.setattr(structural_matcher, "MAX_ROWS", 3)
    tokens = make_tokens(0)
    grammar = compiled(Structural((Tag("<t>aab", NUMBER, "</t>"),), ("<t>aab",)), tokens)
    scan = grammar.sections[grammar.start]
    assert isinstance(scan, FreeText) and list(scan.rows) == [0, 1, 2]
    for _ in range(2):
        for state in range(scan.triggers.num_states - 1):
            row = grammar.row(grammar.start, state)
            assert (row is None) == grammar.known_free(grammar.start, state)
            assert 0 in scan.rows and len(scan.rows) <= 3


POLICIES: tuple[Literal["best_effort", "exact"], ...] = ("best_effort", "exact")


def test_a_schema_that_is_too_much_is_only_checked_if_it_need_not_be_exact(make_tokens: MakeTokens) -> None:
    def lower_part(content: object) -> Lowered:
        raise GrammarTooComplexError("it is too much")

    schema = '{"type": "object", "properties": {"a": {"not": {}}}}'
    loose, exact = (Structural((Tag("<t>", JsonSchema(schema, policy=policy), "</t>"),)) for policy in POLICIES)
    receipt = compile_structural(loose, make_tokens(0), lower_part).receipt
    assert receipt is not None
    assert (receipt.mode, receipt.enforced, receipt.checked) == ("best_effort", ("type",), ("",))
    with pytest.raises(GrammarTooComplexError, match="/tags/0/content"):
        compile_structural(exact, make_tokens(0), lower_part)


def test_the_places_of_all_tags_together_are_bounded(make_tokens: MakeTokens) -> None:
    name = "L" * (MAX_POINTERS_CHARS // 4)

    def lower_part(content: object) -> Lowered:
        assert isinstance(content, JsonSchema)
        pointers = (f"/{name}/{json.loads(content.schema)['const']}",)
        receipt = Receipt(mode=content.policy, checked=pointers, narrowed=pointers)
        return msgspec.structs.replace(lower(content), receipt=receipt)

    def compiled(policy: Policy, num_tags: int) -> StructuralGrammar:
        contents = [
            JsonSchema(json.dumps({"const": 10**index // 9}), policy=policy) for index in range(1, 1 + num_tags)
        ]
        spec = Structural(tuple(Tag(f"<t{'a' * index}>", content, "</t>") for index, content in enumerate(contents)))
        return compile_structural(spec, make_tokens(0), lower_part)

    few, many = compiled("exact", 3), compiled("best_effort", 5)
    assert few.receipt is not None and many.receipt is not None
    assert len(few.receipt.checked) == len(few.receipt.narrowed) == 3
    assert few.num_bytes > 6 * len(name)
    assert many.receipt.checked == many.receipt.narrowed == ("",)
    with pytest.raises(GrammarTooComplexError, match="at most 1,000 places with 32,768 characters"):
        compiled("exact", 5)


MARKED = Structural((Tag("<t>", Regex("[ab]+"), "</t>"),), triggers=("<t>",))


def test_free_text_takes_no_mask(vocabulary: Vocabulary) -> None:
    """This holds even where a trigger has begun for the first time."""
    matcher = compiled(MARKED, TokenTable(vocabulary)).matcher()
    for token in vocabulary.encode("a<<t/<tt<b"):
        assert matcher.free
        matcher.accept(token)
    assert matcher.free


def test_rows_are_prepared_with_bounded_effort(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural_matcher, "MAX_EFFORT", 0)
    tokens = TokenTable(vocabulary)
    matcher = compiled(MARKED, tokens).matcher()
    assert matcher.free
    matcher.accept(vocabulary.encode("<")[0])
    assert not matcher.free
    assert len(allowed(matcher, tokens)) == vocabulary.size
    assert matcher.free


def test_a_receipt_tells_what_is_left_out_of_any_tag(vocabulary: Vocabulary) -> None:
    branches = [{"properties": {"x": {"minimum": i}}, "required": [f"k{i}"]} for i in range(8)]
    narrow = JsonSchema(json.dumps({"type": "object", "oneOf": branches}))
    spec = Structural((Tag("<t>", narrow, "</t>"), Tag("<u>", NUMBER, "</u>")))
    receipt = compiled(spec, TokenTable(vocabulary)).receipt
    assert receipt is not None
    assert receipt.narrowed == ("",)


def test_it_may_be_ended_before_each_section(make_tokens: MakeTokens) -> None:
    """A spec of many triggers is no single piece of work that nothing can end."""
    spec = Structural(tuple(Tag(f"<{mark}>", Regex("[ab]+"), "</>") for mark in "ab12"))
    tokens, calls = make_tokens(0), []

    class EndedError(Exception):
        pass

    def end_at(number: int) -> None:
        calls.append(number)
        if len(calls) == number:
            raise EndedError

    compile_structural(spec, tokens, lower, lambda: end_at(0))
    assert len(calls) > len(spec.tags)
    for number in range(1, len(calls) + 1):
        calls.clear()
        with pytest.raises(EndedError):
            compile_structural(spec, tokens, lower, partial(end_at, number))


def test_a_bounded_number_of_ways_is_kept(make_tokens: MakeTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural_matcher, "MAX_ROWS", 3)
    tokens = make_tokens(0)
    free = FreeText(Triggers([to_symbols("<t>aaaaaa", {})]), {}, may_end=False)
    ways = [free.path_from(state, tokens) for state in range(9)]
    assert len(free.paths) <= 3
    assert [free.path_from(state, tokens) for state in range(9)] == ways
    assert [len(tokens.text(way)) for way in ways] == list(range(9, 0, -1))
