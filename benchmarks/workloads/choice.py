"""Questions with given answers behind a long shared preamble: MMLU and HellaSwag."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .prose import Prose
from .workload import Script, Size, Workload

NUM_SHOTS = 5
_LETTERS = "ABCD"
_NUM_SUBJECTS = 3


@dataclass(frozen=True)
class Question:
    """`group` is what shares a preamble: a subject, or a data set as a whole."""

    group: str
    text: str
    choices: tuple[str, ...]
    answer: int


def mmlu(size: Size, questions: list[Question] | None = None) -> Workload:
    """Each subject has five solved questions in front; one token is generated."""
    questions = questions or _subjects(size)
    solved: dict[str, list[Question]] = {}
    programs = []
    for question in questions:
        shots = solved.setdefault(question.group, [])
        if len(shots) < NUM_SHOTS:
            shots.append(question)
            continue
        script = Script()
        head = f"The following are multiple choice questions (with answers) about {question.group}.\n\n"
        script.text(head + "".join(_letters(shot, solved=True) for shot in shots))
        script.text(_letters(question, solved=False))
        script.gen(1)
        programs.append(script.ops)
    return Workload("MMLU, 5-shot", "a preamble for each subject", tuple(programs))


def hellaswag(size: Size, questions: list[Question] | None = None) -> Workload:
    """Solved questions in front of all; the best of four endings is selected, so each question is shared by four."""
    questions = questions or _stories(size)
    num_shots = _num_shots(size)
    preamble = "".join(f"{shot.text} {shot.choices[shot.answer]}\n\n" for shot in questions[:num_shots])
    programs = []
    for question in questions[num_shots:]:
        script = Script()
        script.text(preamble)
        script.text(question.text)
        script.select([f" {choice}" for choice in question.choices])
        programs.append(script.ops)
    return Workload("HellaSwag, select", "one preamble, then the question for its four endings", tuple(programs))


def num_stories(size: Size) -> int:
    """How many questions `hellaswag` uses, the solved ones included."""
    return _num_shots(size) + size.programs(5)


def _num_shots(size: Size) -> int:
    return size.count(10, least=4)


def _letters(question: Question, *, solved: bool) -> str:
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip(_LETTERS, question.choices, strict=True))
    answer = f" {_LETTERS[question.answer]}\n\n" if solved else ""
    return f"{question.text}\n{choices}\nAnswer:{answer}"


def _subjects(size: Size) -> list[Question]:
    prose = Prose(1)
    num_questions = size.count(6) if size.num_programs is None else math.ceil(size.num_programs / _NUM_SUBJECTS)
    questions = []
    for _ in range(_NUM_SUBJECTS):
        subject = prose.words(2)
        for _ in range(NUM_SHOTS + num_questions):
            choices = tuple(prose.words(3) for _ in _LETTERS)
            questions.append(Question(subject, prose.text(size.length(24)), choices, prose.random.randrange(4)))
    return questions


def _stories(size: Size) -> list[Question]:
    prose = Prose(2)
    length = size.length(12)
    return [
        Question(
            "", prose.text(size.length(26)), tuple(prose.text(length) for _ in range(4)), prose.random.randrange(4)
        )
        for _ in range(num_stories(size))
    ]
