"""Eleven workloads of programs, of seeded text, and what their programs share.

Questions with given answers behind a long shared preamble; many calls behind long constant instructions; programs that
fork; fields of documents under a grammar; chats of several turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...constrain.spec import Regex
from .prose import Prose
from .workload import Script, Size, Workload

NUM_SHOTS = 5
_LETTERS = "ABCD"
_NUM_SUBJECTS = 3


def mmlu(size: Size) -> Workload:
    """Each subject has five solved questions in front; one token is generated."""
    prose = Prose(1)
    num_questions = size.count(6) if size.num_programs is None else math.ceil(size.num_programs / _NUM_SUBJECTS)
    programs = []
    for _ in range(_NUM_SUBJECTS):
        subject = prose.words(2)
        asked = []
        for _ in range(NUM_SHOTS + num_questions):
            choices = [prose.words(3) for _ in _LETTERS]
            asked.append((_letters(prose.text(size.length(24)), choices), prose.random.choice(_LETTERS)))
        solved = "".join(f"{question} {answer}\n\n" for question, answer in asked[:NUM_SHOTS])
        for question, _ in asked[NUM_SHOTS:]:
            script = Script()
            script.text(f"The following are multiple choice questions (with answers) about {subject}.\n\n{solved}")
            script.text(question)
            script.gen(1)
            programs.append(script.ops)
    return Workload("MMLU, 5-shot", "a preamble for each subject", tuple(programs))


def _letters(text: str, choices: Sequence[str]) -> str:
    lettered = "\n".join(f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=True))
    return f"{text}\n{lettered}\nAnswer:"


def hellaswag(size: Size) -> Workload:
    """Solved questions in front of all; the best of four endings is selected, so each question is shared by four."""
    prose = Prose(2)
    num_shots = size.count(10, least=4)
    asked = []
    for _ in range(num_shots + size.programs(5)):
        text = prose.text(size.length(26))
        endings = [f" {prose.text(size.length(12))}" for _ in range(4)]
        asked.append((text, endings, prose.random.randrange(4)))
    preamble = "".join(f"{text}{endings[answer]}\n\n" for text, endings, answer in asked[:num_shots])
    programs = []
    for text, endings, _ in asked[num_shots:]:
        script = Script()
        script.text(preamble)
        script.text(text)
        script.select(endings)
        programs.append(script.ops)
    return Workload("HellaSwag, select", "one preamble, then the question for its four endings", tuple(programs))


def react(size: Size) -> Workload:
    """Replays recorded traces: at each step the model is asked, then the recorded step is appended instead."""
    prose = Prose(3)
    instructions = "Answer the question with the help of a search engine.\n\n" + "\n\n".join(
        f"Question: {prose.text(12)}\nThought: {prose.text(20)}\nAction: Search[{prose.words(2)}]\n"
        f"Observation: {prose.text(30)}\nThought: {prose.text(12)}\nAction: Finish[{prose.words(2)}]"
        for _ in range(size.count(4))
    )
    programs = []
    for _ in range(size.programs(3)):
        script = Script()
        script.text(instructions)
        script.text(f"\n\nQuestion: {prose.text(12)}\n")
        for _ in range(4):
            (branch,) = script.fork(1)
            script.text("Thought:", branch=branch)
            script.gen(size.length(24), branch=branch)
            script.text(f"Thought: {prose.text(12)}\nAction: Search[{prose.words(2)}]\n")
            script.text(f"Observation: {prose.text(size.length(24))}\n")
        programs.append(script.ops)
    return Workload("ReAct agents", "instructions for all, and each agent's own growing history", tuple(programs))


def generative_agents(size: Size) -> Workload:
    """Independent calls of five functions, each with a long constant head."""
    prose = Prose(4)
    heads = [f"Task: {prose.text(12)}\n\nRules: {prose.text(size.length(130))}\n\n" for _ in range(5)]
    programs = []
    for index in range(size.programs(20, least=10)):
        script = Script()
        script.text(heads[index % len(heads)])
        script.text(f"Name: {prose.name()}\nMemory: {prose.text(size.length(40))}\nAnswer:")
        script.gen(size.length(16))
        programs.append(script.ops)
    return Workload("Generative agents", "a head for each of five functions", tuple(programs))


def retrieval(size: Size) -> Workload:
    """Passages out of a pool, popular ones more often, in front of each question."""
    prose = Prose(5)
    pool = [f"[{index}] {prose.text(size.length(90))}\n\n" for index in range(8)]
    weights = [1 / rank for rank in range(1, len(pool) + 1)]
    head = f"Answer questions with short factual answers.\n\n{prose.text(size.length(90))}\n\n"
    programs = []
    for _ in range(size.programs(10, least=4)):
        passages: list[str] = []
        while len(passages) < 3:
            (passage,) = prose.random.choices(pool, weights)
            if passage not in passages:
                passages.append(passage)
        script = Script()
        script.text(head)
        for passage in passages:
            script.text(passage)
        script.text(f"Question: {prose.text(12)}\nAnswer:")
        script.gen(size.length(12))
        programs.append(script.ops)
    return Workload("RAG pipeline", "instructions for all, and the most popular passages", tuple(programs))


LEVELS = (
    "Propose a plan to solve the problem.",
    "Carry out the plan, step by step.",
    "Reflect on the result: what may be wrong?",
    "Give the final answer.",
)
DIMENSIONS = ("clarity", "originality", "evidence", "structure", "style", "usefulness")


def tree_of_thought(size: Size) -> Workload:
    """Four levels, each answer tried twice: sixteen leaves."""
    prose = Prose(6)
    programs = []
    for _ in range(size.programs(2, least=1)):
        script = Script()
        script.message("user", prose.text(size.length(50)))
        leaves = [0]
        for instruction in LEVELS:
            leaves = [child for leaf in leaves for child in script.fork(2, branch=leaf)]
            for number, leaf in enumerate(leaves):
                script.message("user", f"{instruction} Idea {number % 2 + 1}.", branch=leaf)
                script.answer(size.length(12), branch=leaf)
        programs.append(script.ops)
    return Workload("Tree of thought", "every path from the root", tuple(programs))


def skeleton_of_thought(size: Size) -> Workload:
    """Five short tips in a row, then each expanded by a function with instructions of its own."""
    prose = Prose(7)
    listing = f"Tips, one sentence each.\n\n{prose.text(size.length(90))}\n\n"
    expanding = f"Turn a tip into a paragraph.\n\n{prose.text(size.length(130))}\n\n"
    programs = []
    for _ in range(size.programs(3, least=1)):
        script = Script()
        branches = script.fork(5)
        script.text(listing, f"Topic: {prose.words(3)}\n")
        for number, branch in enumerate(branches, start=1):
            script.text(f"{number}.")
            tip = script.gen(size.length(10))
            script.text("\n")
            script.text(expanding, "Tip: ", tip, "\nParagraph:", branch=branch)
            script.gen(size.length(20), branch=branch)
        script.join(branches)
        programs.append(script.ops)
    return Workload("Skeleton of thought", "instructions for tips, and others for paragraphs", tuple(programs))


def judge(size: Size) -> Workload:
    """An article is judged in six dimensions side by side; the judgements are merged into a score."""
    prose = Prose(8)
    programs = []
    for _ in range(size.programs(2, least=1)):
        script = Script()
        script.message("system", f"You judge articles. {prose.text(size.length(50))}")
        script.message("user", f"The article:\n\n{prose.text(size.length(230))}")
        branches = script.fork(len(DIMENSIONS))
        judgements = []
        for dimension, branch in zip(DIMENSIONS, branches, strict=True):
            script.message("user", f"Judge its {dimension} in one or two sentences.", branch=branch)
            judgements.append(script.answer(size.length(20), branch=branch))
        script.join(branches)
        parts = [part for judgement in judgements for part in ("\n- ", judgement)]
        script.message("user", "Judgements:", *parts, "\n\nGive a score from 1 to 10.")
        script.answer(2)
        programs.append(script.ops)
    return Workload("LLM judge", "the article for its six judges", tuple(programs))


_FIELDS = (
    ("name", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("country", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("latitude", r"-?[0-9]{1,2}\.[0-9]{1,4}", 8),
    ("population", r"[1-9][0-9]{1,8}", 10),
    ("landmarks", r'\["[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}"\]', 24),
)


def json_fields(size: Size) -> Workload:
    """Five fields of a document, each under a regular expression of its own."""
    prose = Prose(9)
    programs = []
    for _ in range(size.programs(4)):
        script = Script()
        script.text(f"{prose.text(size.length(200))}\n\nThe city above as JSON:\n{{")
        for index, (field, pattern, max_tokens) in enumerate(_FIELDS):
            script.text(f'{"," if index else ""}\n  "{field}": ')
            script.gen(max_tokens, grammar=Regex(pattern))
        script.text("\n}\n")
        programs.append(script.ops)
    return Workload("JSON fields, regex", "a document for its five fields", tuple(programs))


def chat_short(size: Size) -> Workload:
    return _chat("Chat, short answers", size, num_chats=5, question=48, answer=6)


def chat_long(size: Size) -> Workload:
    return _chat("Chat, long answers", size, num_chats=4, question=40, answer=40)


def _chat(name: str, size: Size, *, num_chats: int, question: int, answer: int) -> Workload:
    prose = Prose(10)
    programs = []
    for _ in range(size.programs(num_chats)):
        script = Script()
        for _ in range(4):
            script.message("user", prose.text(size.length(question)))
            script.answer(size.length(answer, least=4))
        programs.append(script.ops)
    return Workload(name, "each conversation's own history", tuple(programs))


WORKLOADS: dict[str, Callable[[Size], Workload]] = {
    "mmlu": mmlu,
    "hellaswag": hellaswag,
    "react": react,
    "agents": generative_agents,
    "tree": tree_of_thought,
    "skeleton": skeleton_of_thought,
    "judge": judge,
    "json": json_fields,
    "chat-short": chat_short,
    "chat-long": chat_long,
    "rag": retrieval,
}
"""Makers by name."""
