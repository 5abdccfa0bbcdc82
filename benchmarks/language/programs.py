"""Programs of the language, as a user writes them: tree of thought, a judge, self-consistency, ReAct with a tool."""

from __future__ import annotations

from collections import Counter

from ...lang.api import assistant, function, gen, user
from ...lang.control import repeat_until, times, var
from ...lang.state.state import State
from ...lang.tools.tool import tool, use
from ..workloads.programs import DIMENSIONS as DIMENSIONS
from ..workloads.programs import LEVELS as LEVELS
from ..workloads.prose import INSTRUCTIONS, Prose

NUM_SAMPLES = 16
MAX_TURNS = 4
SCORE_TOKENS = 2
STEP_TOKENS = 40
ANSWER_TOKENS = 8

STEP = r" [A-Z][a-z ]{8,40}\.\nAction: Search\[[a-z ]{3,16}\]\n"
ANSWER = r"[a-z ]{3,16}\]"
NOTHING = "Nothing was found."
LAST_WORDS = "Thought: That is enough.\nAction: Finish["


@function
def tree_of_thought(s: State, problem: str, max_tokens: int) -> list[str]:
    """Four levels, each answer tried twice: sixteen leaves."""
    s += user(problem)
    leaves: list[State] = [s]
    for level, instruction in enumerate(LEVELS):
        leaves = [child for leaf in leaves for child in leaf.fork(2)]
        for number, leaf in enumerate(leaves):
            leaf += user(f"{instruction} Idea {number % 2 + 1}.")
            leaf += assistant(gen(f"level {level}", max_tokens, temperature=0, ignore_eos=True))
    return [str(leaf[f"level {len(LEVELS) - 1}"]) for leaf in leaves]


@function
def judge(s: State, article: str, max_tokens: int) -> list[str]:
    """Six judgements side by side, and a score of all."""
    s += user(f"The article:\n\n{article}")
    forks = s.fork(len(DIMENSIONS))
    for dimension, branch in zip(DIMENSIONS, forks, strict=True):
        branch += user(f"Judge its {dimension}.")
        branch += assistant(gen("judgement", max_tokens, temperature=0, ignore_eos=True))
    forks.join()
    with s.user():
        s += "Judgements:"
        for index in range(len(DIMENSIONS)):
            s += "\n- " + s.ref("judgement", index)
        s += "\n\nGive a score from 1 to 10."
    s += assistant(gen("score", SCORE_TOKENS, temperature=0, ignore_eos=True))
    return [*s["judgement"], str(s["score"])]


@function
def self_consistency(s: State, question: str, max_tokens: int) -> str:
    """Sixteen samples; what most of them say."""
    s += user(question)
    s += assistant(gen("answer", max_tokens, n=NUM_SAMPLES, temperature=0.8, seed=1, ignore_eos=True))
    return majority(s["answer"])


@tool
def search(step: str) -> str:
    """Finds what a step asks for."""
    query = step.rpartition("[")[2].partition("]")[0].strip()
    return Prose(len(query)).text(12) if query else NOTHING


@function
def react(s: State, question: str) -> list[str]:
    """Thinks and searches until it has searched often enough, or nothing is found; then answers."""
    s += INSTRUCTIONS + f"Question: {question}\n"
    enough = (var("observation") == NOTHING) | (times("step") == MAX_TURNS)
    s += repeat_until(enough, turn, at_most=MAX_TURNS)
    s += LAST_WORDS + gen("answer", ANSWER_TOKENS, regex=ANSWER, temperature=0)
    return [*map(str, s.history("step")), str(s["answer"])]


def turn(s: State) -> None:
    s += "Thought:" + gen("step", STEP_TOKENS, regex=STEP, temperature=0)
    s += "Observation: " + use("observation", search, step=var("step")) + "\n"


def majority(answers: list[str]) -> str:
    return Counter(answers).most_common(1)[0][0]
