"""Tells whether a grammar in Lark's notation has a word at all, rather than going on for ever."""

from __future__ import annotations

import regex

from .expressions import Expression, Name, OneOf, Repetition, Sequence, names_in, with_words

_TOKENS = regex.compile(
    r"""(?P<skip>[ \t\r\n]+|//[^\n]*|\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^<>\n]*>|@[A-Za-z0-9_]+)
    |(?P<name>[?!]*[A-Za-z_][A-Za-z0-9_]*)
    |(?P<inline>%(?:json|regex|lark)\b)
    |(?P<directive>%[a-z]+)
    |(?P<counts>\{\s*[0-9]*\s*,?\s*[0-9]*\s*\}|~\s*[0-9]+(?:\s*\.\.\s*[0-9]+)?)
    |(?P<mark>->|\.\.|::|[()\[\]{}|*+?:.~&,=])
    |(?P<number>-?[0-9]+)""",
    regex.VERBOSE,
)
_WORD = Sequence(())
"""Stands for what surely has a word: which one does not matter here."""

_Token = tuple[str, str]


def has_word(grammar: str) -> bool | None:
    """Returns whether some text is a word of the grammar; None if it says things that are not understood here.

    Terminals are taken to match something.
    """
    try:
        rules = _LarkReader(_tokens(grammar)).rules()
    except (_NotUnderstoodError, RecursionError):
        return None
    used = {name for body in rules.values() for name in names_in(body)}
    if "start" not in rules or not used <= rules.keys():
        return None
    return "start" in with_words(rules)


class _NotUnderstoodError(Exception):
    """The grammar goes beyond rules, terminals and repetitions."""


def _tokens(grammar: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(grammar):
        match = _TOKENS.match(grammar, at)
        if match is None or match.lastgroup is None:
            raise _NotUnderstoodError
        at = match.end()
        if match.lastgroup == "inline":
            at = _after_braces(grammar, at)
        if match.lastgroup != "skip":
            tokens.append((match.lastgroup, match.group()))
    return tokens


def _after_braces(grammar: str, at: int) -> int:
    """Returns where the object after `%json` ends."""
    depth = 0
    for piece in regex.finditer(r'"(?:\\.|[^"\\])*"|[{}]', grammar, pos=at):
        depth += {"{": 1, "}": -1}.get(piece.group(), 0)
        if depth <= 0:
            return int(piece.end())
    raise _NotUnderstoodError


class _LarkReader:
    """Recursive descent over the tokens. Only rules are read: the definitions of terminals are passed over."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        while self._kind() != "end":
            if self._kind() == "directive":
                self._at += 1
                while self._kind() not in ("end", "directive") and self._definition() is None:
                    self._at += 1
                continue
            body = self._definition()
            if body is None:
                raise _NotUnderstoodError
            name = self._tokens[self._at][1].lstrip("?!")
            self._at = body
            if name.lstrip("_")[:1].isupper():
                while self._kind() not in ("end", "directive") and self._definition() is None:
                    self._at += 1
            else:
                if name in rules:
                    raise _NotUnderstoodError
                rules[name] = self._choice()
        return rules

    def _definition(self) -> int | None:
        """Returns where the body of the definition that begins here does; None if there is none."""
        if self._kind() != "name":
            return None
        at = self._at + 1
        if self._tokens[at][1] == ".":  # a priority
            at += 2
        if self._tokens[at : at + 1] and self._tokens[at][1] == "[":  # attributes
            while self._tokens[at][1] != "]":
                if self._tokens[at][0] == "end":
                    return None
                at += 1
            at += 1
        return at + 1 if at < len(self._tokens) and self._tokens[at] == ("mark", ":") else None

    def _choice(self) -> Expression:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return OneOf(tuple(options))

    def _sequence(self) -> Expression:
        items: list[Expression] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        if self._take("->"):
            self._at += 1
        return Sequence(tuple(items))

    def _item(self) -> Expression | None:
        kind, text = self._tokens[self._at]
        if kind in ("end", "directive") or text in ("|", ")", "]", "->") or self._definition() is not None:
            return None
        self._at += 1
        if kind == "text":
            if self._take(".."):
                self._at += 1
            return _WORD
        if kind == "inline":
            return _WORD
        if kind == "name":
            return _WORD if text.lstrip("_")[:1].isupper() else Name(text)
        if text not in ("(", "["):
            raise _NotUnderstoodError
        inner = self._choice()
        if not self._take(")" if text == "(" else "]"):
            raise _NotUnderstoodError
        return inner if text == "(" else Repetition(inner, 0, 1)

    def _repeated(self, item: Expression) -> Expression:
        while True:
            kind, text = self._tokens[self._at]
            if text in ("*", "?"):
                item = Repetition(item, 0, None)
            elif kind == "counts":
                least = regex.search(r"[0-9]+|,", text)
                item = Repetition(item, int(least[0]) if least and least[0] != "," else 0, None)
            elif text != "+":
                return item
            self._at += 1

    def _take(self, mark: str) -> bool:
        if self._tokens[self._at] != ("mark", mark):
            return False
        self._at += 1
        return True

    def _kind(self) -> str:
        return self._tokens[self._at][0]
