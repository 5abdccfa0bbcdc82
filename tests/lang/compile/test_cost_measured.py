"""Estimates of programs are what the engine measures, where generations are as long as they may be."""

from pathlib import Path

import pytest

import bough
from bough.benchmarks.language import programs as language_programs
from bough.benchmarks.workloads.prose import Prose
from bough.runtime.protocol.program import Done
from bough.runtime.tokenizer.load import load_tokenizer

QUESTION = Prose(1).text(50)


def six_tokens(name: str):
    return bough.gen(name, 6, temperature=0, ignore_eos=True)


@bough.function
def sampled(s, question: str):
    s += bough.user(question) + bough.assistant(bough.gen("answer", 12, n=8, seed=1, ignore_eos=True))


@bough.function
def repeated(s, question: str):
    s += bough.user(question) + bough.assistant_begin()
    again = "Again: " + six_tokens("turn") + "\n"
    s += bough.repeat_until(bough.var("turn") == "never", again, at_most=4)
    s += bough.assistant_end() + bough.user("And?") + bough.assistant(six_tokens("end"))


@bough.function
def chosen(s, question: str):
    s += bough.user(question)
    s += bough.assistant("It is " + bough.select("v", ["very good", "good", "bad"]))


@bough.function
def appended(s, question: str):
    s += question
    branches = s.fork(3)
    for number, branch in enumerate(branches):
        branch += f"\n{number}." + six_tokens("point")
    branches.join("concate_and_append")
    s += "\nIn short:" + six_tokens("end")


PROGRAMS = {
    "tree of thought": (language_programs.tree_of_thought.compile(max_tokens=8), {"problem": QUESTION}, 0.0),
    "judge": (language_programs.judge.compile(max_tokens=8), {"article": Prose(2).text(120)}, 0.05),
    "samples": (sampled.compile(), {"question": QUESTION}, 0.0),
    "loop": (repeated.compile(), {"question": QUESTION}, 0.0),
    "choices": (chosen.compile(), {"question": QUESTION}, 0.0),
    "appended branches": (appended.compile(), {"question": QUESTION}, 0.0),
}
"""By how much an estimate may be off: what was generated is tokenised anew where it is put into a text."""


@pytest.mark.model
@pytest.mark.slow
def test_an_estimate_is_what_a_run_measures(default_model: Path):
    tokenizer = load_tokenizer(default_model)
    # Chunks that follow the time of steps cut prompts elsewhere in each run: what is cached by then differs a little.
    backend = bough.LocalBackend(str(default_model), max_step_ms=1e9)
    try:
        for name, (program, arguments, tolerance) in PROGRAMS.items():
            assert backend.flush_cache()
            *_, done = program.stream(backend=backend, **arguments)
            assert isinstance(done, Done), done
            cost, usage = program.cost(tokenizer=tokenizer, **arguments), done.usage
            assert cost.generated_tokens == usage.completion_tokens, name
            assert cost.prompt_tokens == pytest.approx(usage.prompt_tokens, rel=tolerance), name
            assert cost.reused_tokens == pytest.approx(usage.cached_tokens, rel=tolerance), name
            guessed = program.cost(**arguments)
            assert guessed.prompt_tokens == pytest.approx(usage.prompt_tokens, rel=0.4), name
    finally:
        backend.close()
