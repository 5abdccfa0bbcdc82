"""Compiler of tagged texts: sections of free text with the triggers that end them, and grammars of tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import regex

from ...errors import GrammarError, GrammarTooComplexError, MatcherError, cut
from ...lower import lower_loosely
from ...lowered import Lowered
from ...receipt import TOO_MANY_TO_CHECK, Pointers, Receipt
from ...spec import Choice, Gbnf, JsonSchema, Lark, Regex, Structural, Tag, excess_of_tags
from ...vocabulary.token_table import TokenTable
from ...vocabulary.triggers import FIRST_CONTROL, Symbols, Triggers, runs, to_symbols
from ..completion import Completer
from ..interface import GrammarState
from ..lexer import Lexer, start_state
from ..token_matcher import CompiledGrammar
from .matcher import Body, FreeText, Section, StructuralGrammar, encode

_ONE_TERMINAL = regex.compile(r"\s*start\s*:\s*(/(?:\\.|[^/\\\n])+/[a-z]*)\s*")
"""Matches a grammar that is a single regular expression."""


class Source:
    """Source of a grammar of some tags, or of one part alone. With `leaves`, anything may follow the first tag.

    `parts` are the grammars within it; `ends` end contents that are plain text, not grammars; `words` are known words.

    As far as its content leaves a choice, a tag ends at the first occurrence of its `end`. Where the beginning of one
    tag is a prefix of another's, the longer one counts.
    """

    def __init__(
        self,
        tokens: TokenTable,
        *,
        leaves: bool = False,
        repeats: bool = False,
        optional: bool = False,
        after_reasoning: bool = False,
    ) -> None:
        self.parts: list[Lowered] = []
        self.ends: list[Symbols] = []
        self.words: list[Symbols] = []
        self._names: dict[int, str] = {}
        self._tokens = tokens
        self._leaves = leaves
        self._repeat = {(False, False): "", (False, True): "?", (True, False): "+", (True, True): "*"}[
            (repeats, optional)
        ]
        self._before = '("\\n" "\\n"?)? ' if after_reasoning else ""
        self._alternatives: list[str] = []
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []

    @property
    def empty(self) -> bool:
        """True if it has no content."""
        return not self._alternatives

    def add_part(self, lowered: Lowered) -> None:
        """Adds the words of a grammar."""
        self._alternatives.append(self._part(lowered))

    def add_tag(self, begin: Symbols, lowered: Lowered | None, tag: Tag, *, leaves: bool) -> None:
        """Adds a tag; only `begin` is still to be written before its content."""
        end = to_symbols(tag.end, self._tokens.control)
        terminal = _terminal(tag, lowered)
        number = len(self._rules)
        if terminal is None:
            assert lowered is not None
            body = f"{self._part(lowered)} {literal(end)}"
        else:
            # Text and end form one terminal: the text may hold characters of the end, and stops where it first occurs.
            # A control token ends any text, so the text before one may be matched greedily.
            stop = next((position for position, symbol in enumerate(end) if symbol >= FIRST_CONTROL), len(end))
            first = "[lazy]" if stop == len(end) and (end or leaves) else ""
            self._rules.append(f"body_{number}{first}: TEXT_{number}\nTEXT_{number}: {terminal} {literal(end[:stop])}")
            body = f"body_{number} {literal(end[stop:])}"
            self.ends.append(end)
            if lowered is not None:
                self.parts.append(lowered)
        if lowered is not None and lowered.witness is not None:
            self.words.append((*begin, *lowered.witness.encode(), *end))
        self._alternatives.append(f"{literal(begin)} {body}")

    def text(self) -> str:
        """Returns the text of the grammar."""
        tags = "\n    | ".join(self._alternatives)
        rest = " REST?" if self._leaves else ""
        lines = [f"start: {self._before}tag{self._repeat}{rest}", f"tag: {tags}", *self._rules]
        if self._leaves:
            lines.append("REST: /(?s:.+)/")
        main = {"lark_grammar": "\n".join(lines) + "\n"}
        return json.dumps({"grammars": [main, *self._grammars]})

    def _part(self, lowered: Lowered) -> str:
        """Returns a reference to another grammar, which keeps its own names."""
        if id(lowered) in self._names:
            return f"@{self._names[id(lowered)]}"
        name = self._names[id(lowered)] = f"part_{len(self._names)}"
        self.parts.append(lowered)
        source = lowered.source
        grammar = json.loads(source)["grammars"][0] if source.lstrip().startswith("{") else {"lark_grammar": source}
        self._grammars.append({**grammar, "name": name})
        return f"@{name}"


def literal(symbols: Symbols) -> str:
    """Returns a text with control tokens as a literal of the grammar compiler; nothing for an empty one."""
    return " ".join(f"<[{run}]>" if isinstance(run, int) else _quoted(run.decode()) for run in runs(symbols))


def _terminal(tag: Tag, lowered: Lowered | None) -> str | None:
    """Returns the content of a tag as a regular expression; None if it is not one."""
    if tag.content is None:
        return "/(?s:.*)/"
    if isinstance(tag.content, Choice):
        return f"({' | '.join(map(_quoted, dict.fromkeys(tag.content.options)))})"
    if not isinstance(tag.content, Regex) or lowered is None:
        return None
    source = lowered.source
    if source.lstrip().startswith("{"):
        source = json.loads(source)["grammars"][0].get("lark_grammar") or ""
    whole = _ONE_TERMINAL.fullmatch(source)
    return whole[1] if whole else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


MAX_MARK_BYTES = 1_024
MAX_MARKS_BYTES = 65_536
"""Most bytes, as UTF-8, of all begins, ends and triggers: each byte is a state of the search for them."""
MAX_GROUPED_TAGS = 4_096
"""Most tags in the grammars of all triggers: a tag is in the grammar of each trigger that may begin it."""
MAX_REST_BYTES = 65_536
"""Most bytes of the suffixes of ends that are tried before a search."""
MAX_SUSPECTS = 2_000
"""Most tokens that hold a mark and more: each is tried separately for a mask (12 us)."""

Content = JsonSchema | Regex | Choice | Lark | Gbnf
LowerPart = Callable[[Content], Lowered]


def compile_structural(
    spec: Structural, tokens: TokenTable, lower_part: LowerPart, between_parts: Callable[[], None] = lambda: None
) -> StructuralGrammar:
    """Compiles `spec`. `lower_part` lowers the content of a tag to a grammar.

    `between_parts` is called before each section, and may end the compilation by raising.

    Raises:
        GrammarError: `path` is a JSON pointer into the fields of `spec`.
    """
    return _Compilation(spec, tokens, lower_part, between_parts).run()


class _Compilation:
    """Compiles the sections of one spec, the last one first."""

    def __init__(
        self, spec: Structural, tokens: TokenTable, lower_part: LowerPart, between_parts: Callable[[], None]
    ) -> None:
        _check(spec, tokens)
        self._spec = spec
        self._tokens = tokens
        self._index = tokens.index
        self._between_parts = between_parts
        self._sections: list[Section] = []
        self._begins = [to_symbols(tag.begin, tokens.control) for tag in spec.tags]
        self._written: dict[Content, Lowered] = {}
        self._lowered = [
            None if tag.content is None else self._lower(lower_part, tag.content, f"/tags/{index}/content")
            for index, tag in enumerate(spec.tags)
        ]
        self._then = None if spec.then is None else self._lower(lower_part, spec.then, "/then")

    def run(self) -> StructuralGrammar:
        spec = self._spec
        start = self._main()
        if spec.reasoning_end is not None:
            pattern = to_symbols(spec.reasoning_end, self._tokens.control)
            start = self._free_text(
                Triggers([pattern]),
                {(0,): start},
                may_end=self._may_be_empty(start),
                path="/reasoning_end",
                most=self._most_before(pattern),
            )
        receipt = _receipt([*self._lowered, self._then])
        grammar = StructuralGrammar(tuple(self._sections), start, self._tokens, self._index, receipt)
        for number, section in enumerate(self._sections):
            if isinstance(section, FreeText):
                self._between_parts()
                grammar.prepare(number)
        return grammar

    def _most_before(self, pattern: Symbols) -> int | None:
        """Returns after how many tokens of reasoning its end must be written, from wherever that is begun by then."""
        budget = self._spec.reasoning_budget
        if budget is None:
            return None
        num_last = max(len(encode(self._tokens, pattern[done:])) for done in range(len(pattern)))
        return max(budget - num_last, 0)

    def _main(self) -> int:
        """Compiles the section in which the constrained text begins; returns its number."""
        spec = self._spec
        if self._then is not None:
            source = Source(self._tokens, after_reasoning=spec.reasoning_end is not None)
            source.add_part(self._then)
            return self._body(source, None, json=self._then.json)
        if not spec.tags:
            return self._free_text(Triggers([]), {}, may_end=True)
        if not spec.free_text:
            source = Source(
                self._tokens,
                after_reasoning=spec.reasoning_end is not None,
                repeats=not spec.stop_after_first,
                optional=not spec.at_least_one,
            )
            for index, tag in enumerate(spec.tags):
                source.add_tag(self._begins[index], self._lowered[index], tag, leaves=False)
            return self._body(source, None)
        patterns = [to_symbols(trigger, self._tokens.control) for trigger in spec.triggers] or self._begins
        triggers = Triggers(dict.fromkeys(patterns))
        targets: dict[tuple[int, ...], int] = {}
        after = None if spec.stop_after_first else self._free_text(triggers, targets, may_end=True)
        targets |= self._groups(triggers, after)
        if after is not None and not spec.at_least_one:
            return after
        return self._free_text(triggers, targets, may_end=not spec.at_least_one)

    def _groups(self, triggers: Triggers, leaves_to: int | None) -> dict[tuple[int, ...], int]:
        """Compiles a section of tags for each set of triggers that can match at once."""
        suspects = self._suspects(triggers, "/triggers") if leaves_to is not None else ()
        targets: dict[tuple[int, ...], int] = {}
        followers: dict[int, list[int]] = {}
        for index, begin in enumerate(self._begins):
            for number in triggers.prefixes(begin):
                followers.setdefault(number, []).append(index)
        num_grouped = 0
        for pattern in triggers.patterns:
            state, _ = triggers.walk(0, pattern)
            matched = triggers.matched(state)
            if matched in targets:
                continue
            source = Source(self._tokens, leaves=leaves_to is not None)
            tags = sorted((index, number) for number in matched for index in followers.get(number, ()))
            num_grouped += len(tags)
            if num_grouped > MAX_GROUPED_TAGS:
                reason = f"more than {MAX_GROUPED_TAGS} tags follow the triggers, counted for each trigger that ends"
                raise GrammarTooComplexError(f"{reason} another one", path="/triggers")
            for index, number in tags:
                begin = self._begins[index][len(triggers.patterns[number]) :]
                source.add_tag(begin, self._lowered[index], self._spec.tags[index], leaves=leaves_to is not None)
            if source.empty:
                raise GrammarError("no tag begins with the trigger", path="/triggers")
            targets[matched] = self._body(source, leaves_to, suspects=suspects)
        return targets

    def _free_text(
        self,
        triggers: Triggers,
        targets: dict[tuple[int, ...], int],
        *,
        may_end: bool,
        path: str = "/triggers",
        most: int | None = None,
    ) -> int:
        self._between_parts()
        way, num_after = (0, 0) if may_end else self._way_out(triggers, targets)
        suspects = self._suspects(triggers, path)
        self._sections.append(FreeText(triggers, targets, may_end, suspects, way, num_after, most))
        return len(self._sections) - 1

    def _suspects(self, triggers: Triggers, path: str) -> tuple[int, ...]:
        """Returns the tokens that hold a whole pattern and more."""
        suspects = tuple(self._index.holding_any(triggers))
        if len(suspects) > MAX_SUSPECTS:
            reason = f"{len(suspects)} tokens contain one of the texts, at most {MAX_SUSPECTS} may: make it longer"
            raise GrammarTooComplexError(reason, path=path)
        return suspects

    def _body(
        self, source: Source, leaves_to: int | None, *, suspects: tuple[int, ...] = (), json: bool = False
    ) -> int:
        self._between_parts()
        text = source.text()
        make = partial(start_state, self._tokens, text)
        start = make()
        if start.is_error():
            reason = cut(" ".join(start.get_error().split()))
            raise GrammarError(f"the grammar of the tags cannot be compiled: {reason}", path="/tags")
        parts = source.parts
        completer = _TagCompleter(
            self._tokens,
            ends=source.ends,
            known=source.words,
            json=any(part.json for part in parts),
            names=[name for part in parts for name in part.names],
            words=[word for part in parts for word in part.words],
        )
        growth = max((part.growth for part in parts), default=64)
        ambiguous = any(part.ambiguous for part in parts)
        lowered = Lowered(text, json=json, growth=growth, ambiguous=ambiguous)
        grammar = CompiledGrammar(Lexer(start, make), self._tokens, completer, lowered)
        _check_start(grammar)
        self._sections.append(Body(grammar, leaves_to, suspects))
        return len(self._sections) - 1

    def _lower(self, lower_part: LowerPart, content: Content, path: str) -> Lowered:
        """Returns the grammar of a content, the same one for equal contents."""
        if content not in self._written:
            try:
                self._written[content] = _lower_somehow(lower_part, content)
            except GrammarError as error:
                error.path = path + error.path
                raise
        return self._written[content]

    def _may_be_empty(self, section: int) -> bool:
        here = self._sections[section]
        return here.may_end if isinstance(here, FreeText) else here.grammar.matcher().accepting

    def _way_out(self, triggers: Triggers, targets: Mapping[tuple[int, ...], int]) -> tuple[int, int]:
        """Returns the trigger that leads to the shortest end, and the number of tokens needed after it."""
        ways = []
        for index, pattern in enumerate(triggers.patterns):
            state, length = triggers.walk(0, pattern)
            target = self._sections[targets[triggers.matched(state)]]
            num_after = target.num_needed(self._tokens)
            ways.append((length + num_after, index, num_after))
        _, path, num_after = min(ways)
        return path, num_after


def _lower_somehow(lower_part: LowerPart, content: Content) -> Lowered:
    try:
        return lower_part(content)
    except GrammarTooComplexError:
        if isinstance(content, JsonSchema) and content.policy == "best_effort":
            return lower_loosely(content)
        raise


class _TagCompleter(Completer):
    """Completer that tries the ends of tags and some whole tags: in free text a search would not find them."""

    def __init__(
        self,
        tokens: TokenTable,
        *,
        ends: Sequence[Symbols],
        known: Sequence[Symbols],
        json: bool,
        names: Iterable[str],
        words: Iterable[str],
    ) -> None:
        super().__init__(tokens, json=json, names=names, words=words)
        self._rests = sorted((encode(tokens, rest) for rest in _rests(ends)), key=len)
        self._known = sorted((encode(tokens, word) for word in known), key=len)

    def search(self, matcher: GrammarState, max_tokens: int, patience_s: float | None = None) -> list[int] | None:
        """Returns at most `max_tokens` tokens that complete the word, None if none were found. `matcher` is kept."""
        if matcher.is_accepting():
            return []
        for rest in self._rests:
            if len(rest) <= max_tokens and self.completes(matcher, rest):
                return list(rest)
        found = super().search(matcher, max_tokens, patience_s)
        if found is None:
            found = next((word for word in self._known if self.completes(matcher, word)), None)
        return None if found is None or len(found) > max_tokens else list(found)


def _rests(ends: Iterable[Symbols]) -> dict[Symbols, None]:
    """Returns the ends and their suffixes, the shorter ones first, up to `MAX_REST_BYTES`.

    Within an end the grammar leaves no choice, so that a search finds the suffixes that are left out.
    """
    whole: list[Symbols] = [tuple(end) for end in ends]
    rests: dict[Symbols, None] = dict.fromkeys(whole)
    left = MAX_REST_BYTES
    for length in range(1, max(map(len, whole), default=0)):
        shorter = dict.fromkeys(end[-length:] for end in whole if len(end) > length)
        left -= length * len(shorter)
        if left < 0:
            break
        rests |= shorter
    return rests


def _check(spec: Structural, tokens: TokenTable) -> None:
    if spec.then is not None and spec.tags:
        raise GrammarError("tags and another constraint are given: only one of them can follow", path="/then")
    if not spec.tags and spec.then is None and spec.reasoning_end is None:
        raise GrammarError("at least one tag is needed", path="/tags")
    if spec.tags and spec.triggers and not spec.free_text:
        raise GrammarError("triggers need free text to appear in", path="/triggers")
    if (excess := excess_of_tags(len(spec.tags), len(spec.triggers))) is not None:
        raise GrammarError(excess, path="/tags")
    marks = {f"/triggers/{index}": trigger for index, trigger in enumerate(spec.triggers)}
    for index, tag in enumerate(spec.tags):
        marks |= {f"/tags/{index}/begin": tag.begin, f"/tags/{index}/end": tag.end}
        _check_tag(index, tag, spec)
    if spec.reasoning_end is not None:
        marks["/reasoning_end"] = spec.reasoning_end
    elif spec.reasoning_budget is not None:
        raise GrammarError("a budget of reasoning needs a text that ends it", path="/reasoning_budget")
    total = 0
    for path, mark in marks.items():
        if not mark and not path.endswith("/end") and (spec.free_text or not path.endswith("/begin")):
            raise GrammarError("the text is empty", path=path)
        if "\0" in mark:
            raise GrammarError("the text contains a NUL", path=path)
        total += _num_bytes(mark, path)
        if total > MAX_MARKS_BYTES:
            reason = f"begins, ends and triggers have more than {MAX_MARKS_BYTES:,} bytes together"
            raise GrammarError(reason, path=path)
        if any(symbol - FIRST_CONTROL in tokens.eos_ids for symbol in to_symbols(mark, tokens.control)):
            raise GrammarError("the text contains a token that ends the sequence", path=path)


def _num_bytes(mark: str, path: str) -> int:
    try:
        num_bytes = len(mark.encode())
    except UnicodeEncodeError:
        raise GrammarError("the text contains a lone surrogate", path=path) from None
    if num_bytes > MAX_MARK_BYTES:
        raise GrammarError(f"the text has {num_bytes:,} bytes, at most {MAX_MARK_BYTES:,} are allowed", path=path)
    return num_bytes


def _check_tag(index: int, tag: Tag, spec: Structural) -> None:
    if spec.triggers and not any(tag.begin.startswith(trigger) for trigger in spec.triggers):
        raise GrammarError("it begins with none of the triggers", path=f"/tags/{index}/begin")
    if tag.content is None and not tag.end:
        raise GrammarError("a tag with free content needs a text that ends it", path=f"/tags/{index}/end")


def _receipt(parts: Iterable[Lowered | None]) -> Receipt | None:
    """Joins the parts' receipts. That elements differ is seen to only where a grammar has the text to itself.

    Raises:
        GrammarTooComplexError: all of them are exact, and leave too much to the check.
    """
    written = [part for part in parts if part is not None]
    receipts = [part.receipt for part in written if part.receipt is not None]
    if not receipts:
        return None
    later = {pointer for part in written if part.distinct is not None for pointer in part.distinct.pointers}
    enforced = {keyword for receipt in receipts for keyword in receipt.enforced}
    exact = all(receipt.mode == "exact" for receipt in receipts)
    checked, narrowed, closed = Pointers(), Pointers(), Pointers()
    for pointer in chain(later, *(receipt.checked for receipt in receipts)):
        checked.add(pointer)
    for pointer in chain.from_iterable(receipt.narrowed for receipt in receipts):
        narrowed.add(pointer)
    for pointer in chain.from_iterable(receipt.closed for receipt in receipts):
        closed.add(pointer)
    if checked.whole and exact:
        raise GrammarTooComplexError(TOO_MANY_TO_CHECK, path="/tags")
    return Receipt(
        mode="exact" if exact else "best_effort",
        enforced=tuple(sorted(enforced - {pointer.rpartition("/")[2] for pointer in later})),
        checked=checked.listed(),
        narrowed=narrowed.listed(),
        closed=closed.listed(),
    )


def _check_start(grammar: CompiledGrammar) -> None:
    mask = np.zeros(grammar.tokens.num_words, dtype=np.int32)
    try:
        grammar.matcher().fill_mask(mask)
    except MatcherError as error:
        raise GrammarError(f"nothing satisfies the tags: {cut(str(error))}", path="/tags") from None
