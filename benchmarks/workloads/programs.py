"""Eleven program workloads of seeded text, and their shared parts; one number scales them.

Questions with given answers after a long shared preamble; many calls after long constant instructions; programs that
fork; fields of documents under a grammar; chats of several turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ...constrain.spec import GrammarSpec, Regex
from ...runtime.protocol.program import Fork, Gen, Join, Op, Ref, RoleBegin, RoleEnd, Select, Text
from ...runtime.protocol.sampling_params import SamplingParams
from .prose import Prose


@dataclass(frozen=True)
class Size:
    """Scales a workload: the number of programs with `scale`, the lengths in words and tokens with its root."""

    scale: float = 1.0
    num_programs: int | None = None  # about as many, whatever the scale

    def programs(self, standard: int, *, least: int = 2) -> int:
        return self.num_programs or self.count(standard, least=least)

    def count(self, standard: int, *, least: int = 2) -> int:
        return max(least, round(standard * self.scale))

    def length(self, standard: int, *, least: int = 6) -> int:
        return max(least, round(standard * math.sqrt(self.scale)))


@dataclass(frozen=True)
class Workload:
    """`programs` may run in any order or at once. `about` says in a few words what they share."""

    name: str
    about: str
    programs: tuple[tuple[Op, ...], ...]


class Script:
    """Records one program, which begins with `texts`, an instruction each.

    Generation is greedy and of fixed length, so that every run does the same work.
    """

    def __init__(self, *texts: str) -> None:
        self.ops: tuple[Op, ...] = tuple(Text(0, (text,)) for text in texts)
        self._num_branches = 1
        self._num_values = 0

    def text(self, *parts: str | Ref, branch: int = 0) -> None:
        self.ops += (Text(branch, parts),)

    def message(self, role: str, *parts: str | Ref, branch: int = 0) -> None:
        self.ops += (RoleBegin(branch, role), Text(branch, parts), RoleEnd(branch))

    def answer(self, max_tokens: int, *, branch: int = 0) -> Ref:
        """A message of the assistant that is generated."""
        self.ops += (RoleBegin(branch, "assistant"),)
        value = self.gen(max_tokens, branch=branch)
        self.ops += (RoleEnd(branch),)
        return value

    def gen(self, max_tokens: int, *, branch: int = 0, grammar: GrammarSpec | None = None) -> Ref:
        value = self._value(branch)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=grammar is None)
        self.ops += (Gen(branch, value.name, sampling, grammar),)
        return value

    def select(self, choices: Sequence[str], *, branch: int = 0) -> Ref:
        value = self._value(branch)
        self.ops += (Select(branch, value.name, tuple(choices), "token_length_normalized"),)
        return value

    def fork(self, count: int, *, branch: int = 0) -> tuple[int, ...]:
        children = tuple(range(self._num_branches, self._num_branches + count))
        self._num_branches += count
        self.ops += (Fork(branch, children),)
        return children

    def join(self, children: Sequence[int], *, branch: int = 0) -> None:
        self.ops += (Join(branch, tuple(children)),)

    def _value(self, branch: int) -> Ref:
        self._num_values += 1
        return Ref(branch, f"value{self._num_values}")


# -- The workloads -----------------------------------------------------------------------------------------------------

NUM_SHOTS = 5
_LETTERS = "ABCD"
_NUM_SUBJECTS = 3

WORKLOADS: dict[str, Callable[[Size], Workload]] = {}  # makers by name
Scripts = Callable[[Size, Prose], Iterator[Script]]


def _workload(key: str, name: str, about: str, *, seed: int) -> Callable[[Scripts], Scripts]:
    """Enters a generator of programs in WORKLOADS; it gets the source of text that begins with `seed`."""

    def enter(scripts: Scripts) -> Scripts:
        WORKLOADS[key] = lambda size: Workload(name, about, tuple(script.ops for script in scripts(size, Prose(seed))))
        return scripts

    return enter


@_workload("mmlu", "MMLU, 5-shot", "a preamble for each subject", seed=1)
def mmlu(size: Size, prose: Prose) -> Iterator[Script]:
    """Each subject has five solved questions in front; one token is generated."""
    num_questions = size.count(6) if size.num_programs is None else math.ceil(size.num_programs / _NUM_SUBJECTS)
    for _ in range(_NUM_SUBJECTS):
        subject = prose.words(2)
        asked = []
        for _ in range(NUM_SHOTS + num_questions):
            lettered = "\n".join(f"{letter}. {prose.words(3)}" for letter in _LETTERS)
            asked.append((f"{prose.text(size.length(24))}\n{lettered}\nAnswer:", prose.random.choice(_LETTERS)))
        solved = "".join(f"{question} {answer}\n\n" for question, answer in asked[:NUM_SHOTS])
        for question, _ in asked[NUM_SHOTS:]:
            head = f"The following are multiple choice questions (with answers) about {subject}.\n\n{solved}"
            script = Script(head, question)
            script.gen(1)
            yield script


@_workload("hellaswag", "HellaSwag, select", "one preamble, then the question for its four endings", seed=2)
def hellaswag(size: Size, prose: Prose) -> Iterator[Script]:
    """Solved questions in front of all; the best of four endings is selected, so each question is shared by four."""
    num_shots = size.count(10, least=4)
    asked = []
    for _ in range(num_shots + size.programs(5)):
        text = prose.text(size.length(26))
        endings = [f" {prose.text(size.length(12))}" for _ in range(4)]
        asked.append((text, endings, prose.random.randrange(4)))
    preamble = "".join(f"{text}{endings[answer]}\n\n" for text, endings, answer in asked[:num_shots])
    for text, endings, _ in asked[num_shots:]:
        script = Script(preamble, text)
        script.select(endings)
        yield script


@_workload("react", "ReAct agents", "instructions for all, and each agent's own growing history", seed=3)
def react(size: Size, prose: Prose) -> Iterator[Script]:
    """Replays recorded traces: at each step the model is asked, then the recorded step is appended instead."""
    instructions = "Answer the question with the help of a search engine.\n\n" + "\n\n".join(
        f"Question: {prose.text(12)}\nThought: {prose.text(20)}\nAction: Search[{prose.words(2)}]\n"
        f"Observation: {prose.text(30)}\nThought: {prose.text(12)}\nAction: Finish[{prose.words(2)}]"
        for _ in range(size.count(4))
    )
    for _ in range(size.programs(3)):
        script = Script(instructions, f"\n\nQuestion: {prose.text(12)}\n")
        for _ in range(4):
            (branch,) = script.fork(1)
            script.text("Thought:", branch=branch)
            script.gen(size.length(24), branch=branch)
            script.text(f"Thought: {prose.text(12)}\nAction: Search[{prose.words(2)}]\n")
            script.text(f"Observation: {prose.text(size.length(24))}\n")
        yield script


@_workload("agents", "Generative agents", "a head for each of five functions", seed=4)
def generative_agents(size: Size, prose: Prose) -> Iterator[Script]:
    """Independent calls of five functions, each with a long constant head."""
    heads = [f"Task: {prose.text(12)}\n\nRules: {prose.text(size.length(130))}\n\n" for _ in range(5)]
    for index in range(size.programs(20, least=10)):
        memory = f"Name: {prose.name()}\nMemory: {prose.text(size.length(40))}\nAnswer:"
        script = Script(heads[index % len(heads)], memory)
        script.gen(size.length(16))
        yield script


LEVELS = (
    "Propose a plan to solve the problem.",
    "Carry out the plan, step by step.",
    "Reflect on the result: what may be wrong?",
    "Give the final answer.",
)
DIMENSIONS = ("clarity", "originality", "evidence", "structure", "style", "usefulness")


@_workload("tree", "Tree of thought", "every path from the root", seed=6)
def tree_of_thought(size: Size, prose: Prose) -> Iterator[Script]:
    """Four levels, each answer tried twice: sixteen leaves."""
    for _ in range(size.programs(2, least=1)):
        script = Script()
        script.message("user", prose.text(size.length(50)))
        leaves = [0]
        for instruction in LEVELS:
            leaves = [child for leaf in leaves for child in script.fork(2, branch=leaf)]
            for number, leaf in enumerate(leaves):
                script.message("user", f"{instruction} Idea {number % 2 + 1}.", branch=leaf)
                script.answer(size.length(12), branch=leaf)
        yield script


@_workload("skeleton", "Skeleton of thought", "instructions for tips, and others for paragraphs", seed=7)
def skeleton_of_thought(size: Size, prose: Prose) -> Iterator[Script]:
    """Five short tips in a row, then each expanded by a function with instructions of its own."""
    listing = f"Tips, one sentence each.\n\n{prose.text(size.length(90))}\n\n"
    expanding = f"Turn a tip into a paragraph.\n\n{prose.text(size.length(130))}\n\n"
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
        yield script


@_workload("judge", "LLM judge", "the article for its six judges", seed=8)
def judge(size: Size, prose: Prose) -> Iterator[Script]:
    """An article is judged in six dimensions side by side; the judgements are merged into a score."""
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
        yield script


_FIELDS = (
    ("name", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("country", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("latitude", r"-?[0-9]{1,2}\.[0-9]{1,4}", 8),
    ("population", r"[1-9][0-9]{1,8}", 10),
    ("landmarks", r'\["[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}"\]', 24),
)


@_workload("json", "JSON fields, regex", "a document for its five fields", seed=9)
def json_fields(size: Size, prose: Prose) -> Iterator[Script]:
    """Five fields of a document, each under a regular expression of its own."""
    for _ in range(size.programs(4)):
        script = Script(f"{prose.text(size.length(200))}\n\nThe city above as JSON:\n{{")
        for index, (field, pattern, max_tokens) in enumerate(_FIELDS):
            script.text(f'{"," if index else ""}\n  "{field}": ')
            script.gen(max_tokens, grammar=Regex(pattern))
        script.text("\n}\n")
        yield script


def _chat(size: Size, prose: Prose, *, num_chats: int, question: int, answer: int) -> Iterator[Script]:
    for _ in range(size.programs(num_chats)):
        script = Script()
        for _ in range(4):
            script.message("user", prose.text(size.length(question)))
            script.answer(size.length(answer, least=4))
        yield script


_workload("chat-short", "Chat, short answers", "each conversation's own history", seed=10)(
    partial(_chat, num_chats=5, question=48, answer=6)
)
_workload("chat-long", "Chat, long answers", "each conversation's own history", seed=10)(
    partial(_chat, num_chats=4, question=40, answer=40)
)


@_workload("rag", "RAG pipeline", "instructions for all, and the most popular passages", seed=5)
def retrieval(size: Size, prose: Prose) -> Iterator[Script]:
    """Passages out of a pool, popular ones more often, in front of each question."""
    pool = [f"[{index}] {prose.text(size.length(90))}\n\n" for index in range(8)]
    weights = [1 / rank for rank in range(1, len(pool) + 1)]
    head = f"Answer questions with short factual answers.\n\n{prose.text(size.length(90))}\n\n"
    for _ in range(size.programs(10, least=4)):
        passages: dict[str, None] = {}
        while len(passages) < 3:
            passages |= dict.fromkeys(prose.random.choices(pool, weights))
        script = Script(head, *passages, f"Question: {prose.text(12)}\nAnswer:")
        script.gen(size.length(12))
        yield script
