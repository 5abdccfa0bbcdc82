"""Many calls behind long constant instructions: ReAct agents, generative agents, retrieval pipelines."""

from __future__ import annotations

from .prose import Prose
from .workload import Script, Size, Workload


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
