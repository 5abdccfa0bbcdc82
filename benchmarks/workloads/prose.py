"""Seeded text of real words, so that synthetic prompts tokenise like prose."""

from __future__ import annotations

import random
from pathlib import Path

_TEXTS = Path(__file__).parent
_WORDS = (_TEXTS / "words.txt").read_text().split()

PASSAGE = (_TEXTS / "passage.txt").read_text()
"""A fixed text for measuring perplexity: written for this purpose, in the public domain."""

TEXTS = {"prose": PASSAGE, "code": (_TEXTS / "code.txt").read_text(), "chats": (_TEXTS / "chats.txt").read_text()}
"""Fixed texts of three kinds; the code is a file of this project as it once was."""

QUESTIONS = (_TEXTS / "questions.txt").read_text().splitlines()  # questions as people ask them, about two things each
INSTRUCTIONS = (_TEXTS / "react.txt").read_text()  # instructions for answering with a tool, with an example


class Prose:
    """Draws words and sentences; the same seed gives the same text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=count))

    def name(self) -> str:
        return self.random.choice(_WORDS).capitalize()

    def text(self, num_words: int) -> str:
        """Sentences of 6 to 14 words, `num_words` in all."""
        sentences = []
        while num_words > 0:
            length = min(num_words, self.random.randint(6, 14))
            sentences.append(self.words(length).capitalize() + ".")
            num_words -= length
        return " ".join(sentences)
