"""The engine gives the model's own greedy answers by the margin rule, whichever way a GPU runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.constrain.spec import Choice, GrammarSpec, Regex
from bough.runtime.client.llm import LLM

from ..support.margin import MarginRule, faults, summary
from .judge import Judge
from .place import CPU, GPU, INTERPRETED, Place, ask, greedy, make_prompts, shares_prefix

pytestmark = pytest.mark.timeout(600)  # the first engine on a GPU compiles its kernels

ModelOf = Callable[[Place], Path]

EXACT = MarginRule(margin=1e-3, share=0.02, mean_error=1e-4, largest_error=2e-3)
"""For float32: what another order of sums may change."""

ROUNDED = {
    "float32": EXACT,
    "float16": MarginRule(margin=0.03, rank=2, share=0.25, mean_error=0.01, largest_error=0.06),
    "bfloat16": MarginRule(margin=0.3, rank=3, share=0.6, mean_error=0.05, largest_error=0.4),
}
"""Random weights prefer no token by much, so near ties are frequent; but warm answers must not have more of them."""

SWITCHES = [{"cuda_graphs": graphs, "overlap": overlap} for graphs in (False, True) for overlap in (False, True)]


@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        pytest.param(*place.values, dtype, marks=place.marks, id=f"{place.id} {dtype}")
        for place, dtypes in ((GPU, ROUNDED), (CPU, ROUNDED), (INTERPRETED, ("float32", "bfloat16")))
        for dtype in dtypes
    ],
)
def test_greedy_answers_are_the_models(place: Place, dtype: str, model_of: ModelOf) -> None:
    # In bfloat16 few tokens each, or nearly every answer would hold a near tie somewhere.
    num_tokens = min(place.num_tokens, 8) if dtype == "bfloat16" else place.num_tokens
    _check(dataclasses.replace(place, num_tokens=num_tokens), model_of(place), ROUNDED[dtype], dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("place", [GPU])
@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("chunk", [64, 2048])
def test_with_every_switch(place: Place, switches: dict[str, bool], chunk: int, model_of: ModelOf) -> None:
    _check(place, model_of(place), EXACT, dtype="float32", max_batch_tokens=chunk, **switches)


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.parametrize("place", [GPU])
def test_a_trained_model(place: Place, default_model: Path) -> None:
    rule = MarginRule(margin=0.5, share=0.5, mean_error=0.03, largest_error=0.5)
    _check(place, default_model, rule, dtype="bfloat16")


def _check(place: Place, source: Path, rule: MarginRule, **options: Any) -> None:
    prompts = make_prompts(place)
    with place.llm(source, **options) as llm:
        said = ask(llm, prompts, greedy(place.num_tokens))
        assert llm.stats.cached_tokens_total > 0, "nothing was warm"
    judge = Judge(source, place.device, options["dtype"])
    answers = [
        judge.judge(f"request {index}", prompt, answer, warm=shares_prefix(prompt))
        for index, (prompt, answer) in enumerate(zip(prompts, said, strict=True))
    ]
    print(summary(answers))
    assert all(len(answer.choices) == place.num_tokens for answer in answers)
    assert faults(answers, rule) == []


@pytest.mark.parametrize("place", [GPU, INTERPRETED, CPU])
def test_constrained_answers_are_the_best_of_what_is_allowed(place: Place, model_of: ModelOf) -> None:
    prompts = make_prompts(place)
    kinds: list[GrammarSpec] = [Regex("[0-9]{2}-[a-d]{2,4}"), Choice(("yes", "yellow", "no"))]
    specs = [kinds[index % len(kinds)] for index in range(len(prompts))]
    with place.llm(model_of(place), dtype="float32") as llm:
        said = ask(llm, prompts, greedy(16), specs)
        grammars = [_compile(llm, spec) for spec in specs]
    judge = Judge(model_of(place), place.device)
    answers = [
        judge.judge(f"request {index}", prompt, answer, warm=shares_prefix(prompt), grammar=grammar)
        for index, (prompt, answer, grammar) in enumerate(zip(prompts, said, grammars, strict=True))
    ]
    assert {answer.finish_reason for answer in said} == {"stop"}
    assert faults(answers, EXACT) == []


def _compile(llm: LLM, spec: GrammarSpec) -> Any:
    from bough.constrain import GrammarCompiler

    return GrammarCompiler(llm.get_tokenizer().vocabulary(258)).compile(spec)


@pytest.mark.parametrize("place", [GPU, CPU])
def test_the_judge_is_right(place: Place, model_of: ModelOf) -> None:
    """Against an implementation that shares nothing with ours."""
    transformers = pytest.importorskip("transformers")
    folder = model_of(place)
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(place.device).eval()
    prompt = max(make_prompts(place), key=len)
    with torch.inference_mode():
        right = other(torch.tensor([prompt], device=place.device)).logits[0].float().cpu()
    assert torch.allclose(torch.from_numpy(Judge(folder, place.device).logits(prompt)), right, atol=2e-4)


@pytest.mark.parametrize("place", [CPU])
def test_a_wrong_cache_would_be_seen(place: Place, model_of: ModelOf) -> None:
    """The answer to another prompt, which differs in one early token."""
    prompts = make_prompts(place)
    with place.llm(model_of(place), dtype="float32") as llm:
        said = ask(llm, prompts, greedy(place.num_tokens))
    judge = Judge(model_of(place), place.device)
    changed = [[98 if prompt[0] != 98 else 99, *prompt[1:]] for prompt in prompts]
    answers = [judge.judge("", prompt, answer, warm=False) for prompt, answer in zip(changed, said, strict=True)]
    assert len(faults(answers, ROUNDED["bfloat16"])) > len(prompts) // 4
