"""Grammars in GBNF have the words that they say, whatever terminals they are cut into; what is wrong has a line."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass

import pytest
from llguidance import LLMatcher

from bough.constrain.context_free.gbnf import is_gbnf, to_lark
from bough.constrain.errors import GrammarError, GrammarTooComplexError
from bough.constrain.vocabulary.token_table import TokenTable
from bough.constrain.vocabulary.vocabulary import Vocabulary

MAX_LENGTH = 5
AB = str.maketrans("01", "ab")


@pytest.fixture(scope="module")
def tokens() -> TokenTable:
    texts = (None, *(bytes([byte]) for byte in range(256)))
    return TokenTable(
        Vocabulary(tokens=texts, eos_ids=(0,), size=257, encode=lambda text: [1 + byte for byte in text.encode()])
    )


def words(grammar: str, tokens: TokenTable, alphabet: str, max_length: int = MAX_LENGTH) -> set[str]:
    """All words up to a length, by walking through them."""
    start = LLMatcher(tokens.tokenizer, LLMatcher.grammar_from_lark(to_lark(grammar)), log_level=0)
    assert not start.is_error(), start.get_error()
    found = set()
    waiting = [("", start)]
    while waiting:
        text, matcher = waiting.pop()
        if matcher.is_accepting():
            found.add(text)
        for char in alphabet if len(text) < max_length else "":
            following = matcher.deep_copy()
            ids = [1 + byte for byte in char.encode()]
            if following.try_consume_tokens(ids) == len(ids):
                waiting.append((text + char, following))
    return found


@pytest.mark.parametrize(
    ("grammar", "alphabet", "expected"),
    [
        ('root ::= "a" | "bc"', "abc", {"a", "bc"}),
        ("root ::= [a-c]{2} # two\n", "abcd", {first + second for first in "abc" for second in "abc"}),
        ("root ::= [^ac]", "abcd\n", {"b", "d", "\n"}),
        ('root ::= "a"{2,3}', "ab", {"aa", "aaa"}),
        ('root ::= "a"{4,}', "ab", {"aaaa", "aaaaa"}),
        ('root ::= ("a" "b")? "c"+', "abc", {"c" * n for n in range(1, 6)} | {"ab" + "c" * n for n in range(1, 4)}),
        ("root ::= .", "a\né", {"a", "\n", "é"}),
        ('root ::= "\\x41\\u00e9\\U0001F600" | "\\n\\t\\\\\\"" | "/\\/"', 'Aé😀\n\t\\"/', {"Aé😀", '\n\t\\"', "//"}),
        ('root ::= a-b_c\n  d\na-b_c ::= "x"\n# between\nd ::=\n  "y" |\n  "z"\n', "xyz", {"xy", "xz"}),
        ('root ::= "(" root ")" | ""', "()", {"", "()", "(())"}),
        ('root ::= root "a" | "b"', "ab", {"b" + "a" * n for n in range(5)}),
        ('root ::= "a" | dead\ndead ::= "b" dead', "ab", {"a"}),
        ('root ::= "a" (dead | "b")? dead*\ndead ::= "b" dead', "ab", {"a", "ab"}),
        ('root ::= "a" |', "ab", {"", "a"}),
        ("root ::= [\\]\\-x-]", "]-x", {"]", "-", "x"}),
        ('root ::= ("a"?){2,3}', "a", {"", "a", "aa", "aaa"}),
        ('root ::= "a"{0} "b"', "ab", {"b"}),
        # what a lexer that takes the longest match would not find if these were terminals as they stand
        ('root ::= x | "(" root ")"\nx ::= "abc" | [a-c] "b" "b"', "abc", {"abc", "abb", "bbb", "cbb"}),
        (
            'root ::= x "b" | "(" root ")"\nx ::= [ab]*',
            "ab",
            {f"{n:0{k}b}".translate(AB)[-k:] + "b" for k in range(1, 5) for n in range(2**k)} | {"b"},
        ),
        ('root ::= "é"* root2 | "("\nroot2 ::= "è" | "(" root ")"', "éè", {"é" * n + "è" for n in range(5)}),
    ],
)
def test_notation(tokens: TokenTable, grammar: str, alphabet: str, expected: set[str]) -> None:
    assert words(grammar, tokens, alphabet) == expected


@dataclass(frozen=True)
class Tree:
    """An expression as the tests understand it: chars, name, all, any, repeat."""

    kind: str
    parts: tuple[Tree, ...] = ()
    text: str = ""
    low: int = 0
    high: int | None = None


def chars(text: str) -> Tree:
    return Tree("chars", text=text)


def random_tree(rng: random.Random, depth: int, names: list[str]) -> Tree:
    kind = rng.choice(("chars", "chars", "name", "all", "all", "any", "repeat")) if depth else "chars"
    if kind == "chars" or (kind == "name" and not names):
        return chars("".join(sorted(rng.sample("abéè", rng.randint(1, 2)))))
    if kind == "name":
        return Tree("name", text=rng.choice(names))
    if kind == "repeat":
        low = rng.randint(0, 2)
        high = rng.choice((None, low + rng.randint(0, 2)))
        return Tree("repeat", (random_tree(rng, depth - 1, names),), low=low, high=high)
    return Tree(
        kind, tuple(random_tree(rng, depth - 1, names) for _ in range(rng.randint(0 if kind == "all" else 1, 3)))
    )


def written(tree: Tree) -> str:
    match tree.kind:
        case "chars":
            return f"[{tree.text}]" if len(tree.text) > 1 else f'"{tree.text}"'
        case "name":
            return tree.text
        case "all":
            return "(" + " ".join(map(written, tree.parts)) + ")"
        case "any":
            return "(" + " | ".join(map(written, tree.parts)) + ")"
    return f"({written(tree.parts[0])}){{{tree.low},{'' if tree.high is None else tree.high}}}"


def words_of(tree: Tree, rules: dict[str, set[str]]) -> set[str]:
    """The words up to a length, given those of the rules."""
    match tree.kind:
        case "chars":
            return set(tree.text)
        case "name":
            return rules[tree.text]
        case "any":
            return set().union(*(words_of(part, rules) for part in tree.parts))
        case "all":
            result = {""}
            for part in tree.parts:
                result = joined(result, words_of(part, rules))
            return result
    one = words_of(tree.parts[0], rules)
    power = {""}
    for _ in range(tree.low):
        power = joined(power, one)
    result = set(power)
    for _ in range(MAX_LENGTH + 1 if tree.high is None else tree.high - tree.low):
        power = joined(power, one)
        result |= power
    return result


def joined(left: set[str], right: set[str]) -> set[str]:
    return {first + second for first, second in itertools.product(left, right) if len(first + second) <= MAX_LENGTH}


def random_grammar(rng: random.Random) -> dict[str, Tree]:
    """A root that is recursive, so that it is cut into terminals, over parts that are regular or not."""
    parts = ["x", "y", "z"][: rng.randint(1, 3)]
    trees = {name: random_tree(rng, rng.randint(1, 2), parts[:number]) for number, name in enumerate(parts)}
    wide = [*parts, "root"] if rng.random() < 0.4 else parts
    stop = random_tree(rng, 2, parts)
    step = Tree("all", (random_tree(rng, 2, wide), Tree("name", text="root"), random_tree(rng, 1, parts)))
    return {"root": Tree("any", (stop, step)), **trees}


@pytest.mark.parametrize("seed", range(200))
def test_random_grammars_have_their_words(tokens: TokenTable, seed: int) -> None:
    rng = random.Random(seed)
    trees = random_grammar(rng)
    known: dict[str, set[str]] = {name: set() for name in trees}
    while (grown := {name: words_of(tree, known) for name, tree in trees.items()}) != known:
        known = grown
    grammar = "\n".join(f"{name} ::= {written(tree)}" for name, tree in trees.items())
    assert words(grammar, tokens, "abéè") == known["root"], grammar


def test_what_is_regular_becomes_one_terminal() -> None:
    grammar = r"""
root ::= object
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
value ::= object | string | number
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws ::= [ \t\n]{0,4}
"""
    lark = to_lark(grammar)
    assert lark.count("\nT") <= 8
    assert lark.count("\nr") <= 4


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no rule `root`"),
        ('rule ::= "a"', "no rule `root`"),
        ('root ::= "a', "line 1: the string is not closed"),
        ("root ::=\n  [a-", "line 2: the class is not closed"),
        ('root ::= "a" )', "line 1: there is no `"),
        ('root ::= ("a"\nx ::= "b"', "is not closed before the next rule"),
        ('root ::= ("a"', "line 1: this `.` is not closed"),
        ("root ::= x", "line 1: there is no rule 'x'"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3: the rule 'root' is defined twice"),
        ("root ::= <think> [a]", "line 1: tokens cannot be named"),
        ("root ::= !<[7]>", "line 1: tokens cannot be named"),
        (r'root ::= "\q"', r"line 1: unknown escape \\q"),
        (r'root ::= "\x4"', r"line 1: \\x needs 2"),
        (r'root ::= "\ud800"', "is not a character"),
        ("root ::= [b-a]", "the range ends before it begins"),
        ('root ::= "a"{3,2}', "is below the lowest"),
        ('root ::= "a"{}', "expected {m}"),
        ('root: "a"', "line 1: expected `name ::=`"),
        ('root ::= "a" root', "the grammar matches no text"),
        ("root ::= []", "the grammar matches no text"),
    ],
)
def test_errors_have_a_line(grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        to_lark(grammar)


def test_limits() -> None:
    for grammar in ('root ::= "a"{9999}', "root ::= " + "(" * 100_000, "x" * 2_000_000):
        with pytest.raises(GrammarTooComplexError):
            to_lark(grammar)


def test_both_notations_are_told_apart() -> None:
    assert is_gbnf('# a comment\nroot ::= "a"')
    assert is_gbnf("some-rule ::=\n x")
    assert not is_gbnf('start: "::="')
    assert not is_gbnf("?start: x\nx: /a/")


@pytest.mark.parametrize("blanks", [" ", "\n", " \n", "#", "//", "# \n", "\u2003", "a", "a\n"])
def test_a_notation_is_told_in_time_linear_in_the_text(blanks: str) -> None:
    texts = [(blanks * 24_000)[:24_000] + end for end in ("", "!::=", "\n!::=", "a", "a !", "::")]
    began = time.thread_time()
    for text in texts:
        is_gbnf(text)
    assert time.thread_time() - began < 0.2


@pytest.mark.parametrize("part", ["x ", '"a" ', "[a] ", '("a") ', " \n", "# x\n", "x #\n"])
def test_a_grammar_is_read_in_time_linear_in_its_text(part: str) -> None:
    text = 'root ::= "a"\nx ::= ' + (part * 60_000)[:120_000]
    began = time.thread_time()
    with pytest.raises(GrammarError, match=f"line {2 + text.count(chr(10))}: expected"):
        to_lark(f"{text}\n$")
    assert time.thread_time() - began < 2.0
