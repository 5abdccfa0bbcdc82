"""Makes tables of regular constraints: of small ones at once, of others when they come again."""

from __future__ import annotations

import threading

from ...errors import GrammarError
from ...lowered import Lowered, Tabulate
from ...regex.automaton import Automaton, compile_parts, compile_words
from ...spec import Choice, GrammarSpec
from ...vocabulary.token_table import TokenTable
from ...vocabulary.trie import Level, build_trie
from ..interface import Grammar
from .matcher import RegularGrammar
from .rows import token_moves
from .size import is_small

MAX_LIGHT_CHARS = 4_096


def table_job(spec: GrammarSpec, lowered: Lowered) -> Tabulate | None:
    """The job that makes the automaton of `spec`; None if it is not known to be regular."""
    if isinstance(spec, Choice):
        return Tabulate(words=spec.options)
    return Tabulate(parts=lowered.regular) if lowered.regular else None


def tabulate(job: Tabulate) -> Automaton:
    """Does the job. Raises GrammarError."""
    if job.parts:
        return compile_parts(job.parts)
    return compile_words(word.encode() for word in job.words)


def is_light(job: Tabulate) -> bool:
    """Whether the job is certain to take little time and memory: it needs no process of its own."""
    if job.parts:
        first = job.parts[0]
        return len(job.parts) == len(first.all) == 1 and not first.none and is_small(first.all[0])
    return sum(map(len, job.words)) <= MAX_LIGHT_CHARS


class RegularTables:
    """Puts automata and one vocabulary together. Thread-safe."""

    def __init__(self, tokens: TokenTable) -> None:
        self._tokens = tokens
        self._trie: tuple[Level, ...] | None = None
        self._lock = threading.Lock()

    def at_once(self, plain: Grammar) -> Grammar:
        """`plain` as a table, if that takes little; else as it is."""
        tabulation = plain.tabulation
        if tabulation is None or not is_light(tabulation.job):
            return plain
        try:
            return self.grammar(tabulate(tabulation.job), plain)
        except GrammarError as error:  # no reason not to follow it step by step
            tabulation.begin()
            tabulation.table.set_exception(error)
            return plain

    def grammar(self, automaton: Automaton, plain: Grammar) -> RegularGrammar:
        """The constraint `plain` as a table. Raises GrammarError."""
        vocabulary = self._tokens.vocabulary
        with self._lock:
            if self._trie is None:
                self._trie = build_trie(vocabulary.tokens, vocabulary.eos_ids)
        return RegularGrammar(automaton, token_moves(automaton, self._trie, vocabulary.size), self._tokens, plain=plain)
