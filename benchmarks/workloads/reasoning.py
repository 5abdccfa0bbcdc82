"""Programs that fork: tree of thought, skeleton of thought, a judge of many dimensions."""

from __future__ import annotations

from .prose import Prose
from .workload import Script, Size, Workload

_LEVELS = (
    "Propose a plan to solve the problem.",
    "Carry out the plan, step by step.",
    "Reflect on the result: what may be wrong?",
    "Give the final answer.",
)
_DIMENSIONS = ("clarity", "originality", "evidence", "structure", "style", "usefulness")


def tree_of_thought(size: Size) -> Workload:
    """Four levels, each answer tried twice: sixteen leaves."""
    prose = Prose(6)
    programs = []
    for _ in range(size.programs(2, least=1)):
        script = Script()
        script.message("user", prose.text(size.length(50)))
        leaves = [0]
        for instruction in _LEVELS:
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
        branches = script.fork(len(_DIMENSIONS))
        judgements = []
        for dimension, branch in zip(_DIMENSIONS, branches, strict=True):
            script.message("user", f"Judge its {dimension} in one or two sentences.", branch=branch)
            judgements.append(script.answer(size.length(20), branch=branch))
        script.join(branches)
        parts = [part for judgement in judgements for part in ("\n- ", judgement)]
        script.message("user", "Judgements:", *parts, "\n\nGive a score from 1 to 10.")
        script.answer(2)
        programs.append(script.ops)
    return Workload("LLM judge", "the article for its six judges", tuple(programs))
