"""The offline API on a tiny random model: everything it takes is honoured or refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.constrain.spec import Choice, Regex
from bough.runtime.client.llm import LLM, PromptOutput
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import EngineError, EngineStoppedError, ModelError, RequestError
from bough.runtime.protocol.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def made(folder: Path) -> Iterator[LLM]:
    llm = LLM(folder, num_gpu_blocks_override=4096)  # a path is as good as a name
    yield llm
    llm.close()


@pytest.fixture
def llm(made: LLM) -> Iterator[LLM]:
    """Whatever a test does, nothing of it is left in the engine."""
    yield made
    assert not made.has_unfinished_requests()
    assert made.reset_prefix_cache()
    assert (made.stats.running, made.stats.waiting) == (0, 0)
    assert made.stats.free_pages == made.stats.num_pages
    assert made.step() == []


def _model(llm: LLM) -> Any:
    """Returns what computes the logits in its engine."""
    runner: Any = llm._engine._runner
    return runner.model


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> list[PromptOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def test_one_prompt_in_each_shape(llm: LLM) -> None:
    text = "héllo"
    ids = llm.get_tokenizer().encode(text)
    shapes: list[Any] = [text, [text], {"prompt": text}, ids, {"prompt_token_ids": ids}, [ids], (text,)]
    outputs = [generate(llm, shape) for shape in shapes]
    assert all(len(output) == 1 for output in outputs)
    assert len({tuple(output[0].outputs[0].token_ids) for output in outputs}) == 1
    first = outputs[0][0]
    assert (first.prompt, first.prompt_token_ids) == (text, ids)
    assert outputs[3][0].prompt is None
    assert (first.finished, first.error, first.outputs[0].finish_reason) == (True, None, "length")
    assert len(first.outputs[0].token_ids) == 8
    assert first.outputs[0].text == llm.get_tokenizer().decode(first.outputs[0].token_ids)
    assert outputs[1][0].num_cached_tokens == len(ids) - 1


def test_many_prompts_come_back_in_order_and_each_as_if_alone(llm: LLM) -> None:
    prompts = [f"prompt {index} " * (index + 1) for index in range(9)]
    together = generate(llm, prompts)
    assert [output.prompt for output in together] == prompts
    for prompt, output in zip(prompts, together, strict=True):
        assert generate(llm, prompt)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_no_prompts(llm: LLM) -> None:
    assert generate(llm, []) == []


def test_params_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in (1, 5, 3)]
    outputs = generate(llm, ["a", "b", "c"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(RequestError, match="3 prompts but 2 sampling_params"):
        generate(llm, ["a", "b", "c"], params[:2])
    with pytest.raises(RequestError, match="grammar"):
        generate(llm, ["a", "b"], grammar=[Regex("a")])


def test_the_default_is_sixteen_tokens(llm: LLM) -> None:
    assert len(generate(llm, "a", None, grammar=Regex("x{40}"))[0].outputs[0].token_ids) == 16


def test_grammars(llm: LLM) -> None:
    outputs = generate(llm, ["a", "b", "c"], grammar=[Choice(("yes", "no")), None, Regex("[0-9]{3}")])
    assert outputs[0].outputs[0].text in ("yes", "no")
    assert len(outputs[1].outputs[0].token_ids) == 8
    assert outputs[2].outputs[0].text.isdigit()


def test_several_samples(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, seed=5, n=4, logprobs=2, ignore_eos=True)
    output = generate(llm, "a", params)[0]
    assert [sample.index for sample in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(sample.token_ids) for sample in output.outputs}) > 1
    single = generate(llm, "a", SamplingParams(max_tokens=6, seed=5, ignore_eos=True))[0]
    assert single.outputs[0].token_ids == output.outputs[0].token_ids
    assert single.outputs[0].logprobs is None
    assert single.outputs[0].cumulative_logprob is None
    for sample in output.outputs:
        assert sample.logprobs is not None
        assert [entry.token for entry in sample.logprobs] == sample.token_ids
        assert all(len(entry.top) == 2 for entry in sample.logprobs)
        assert sample.cumulative_logprob is not None
        assert math.isclose(sample.cumulative_logprob, sum(entry.logprob for entry in sample.logprobs))
    assert output.usage.completion_tokens == 24


def test_stop_reasons(llm: LLM) -> None:
    text = generate(llm, "a", SamplingParams(max_tokens=20, temperature=0.0))[0].outputs[0]
    token = text.token_ids[3]
    by_token = generate(llm, "a", SamplingParams(max_tokens=20, temperature=0.0, stop_token_ids=(token,)))[0].outputs[0]
    assert (by_token.finish_reason, by_token.stop_reason) == ("stop", token)
    grammar = Choice(("one two",))
    by_text = generate(llm, "a", SamplingParams(max_tokens=20, stop=" t"), grammar=grammar)[0].outputs[0]
    assert (by_text.text, by_text.finish_reason, by_text.stop_reason) == ("one", "stop", " t")


def test_chat(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]
    one = llm.chat(messages, GREEDY, use_tqdm=False)
    assert len(one) == 1
    tokens = one[0].prompt_token_ids
    assert tokens == llm.get_tokenizer().encode_chat(messages)
    assert (tokens.count(256), tokens.count(257)) == (3, 2)  # what a message says is never a control token
    several = llm.chat([messages, messages[1:]], GREEDY, use_tqdm=False)
    assert several[0].outputs[0].token_ids == one[0].outputs[0].token_ids
    assert len(several) == 2
    bare = llm.chat(messages, GREEDY, add_generation_prompt=False, use_tqdm=False)[0]
    assert tokens[: len(bare.prompt_token_ids)] == bare.prompt_token_ids
    assert len(bare.prompt_token_ids) < len(tokens)
    with pytest.raises(RequestError):
        llm.chat([{"content": "x"}], GREEDY, use_tqdm=False)


def test_step_by_step(llm: LLM) -> None:
    llm.add_request("a", "first", SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
    llm.add_request("b", "second", SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))
    with pytest.raises(RequestError, match="'a' is running already"):
        llm.add_request("a", "again")
    finished: list[str] = []
    lengths: list[int] = []
    while llm.has_unfinished_requests():
        changed = llm.step()
        finished += [output.request_id for output in changed if output.finished]
        lengths += [len(o.outputs[0].token_ids) for o in changed if o.request_id == "b"]
    assert finished == ["a", "b"]
    assert lengths == [1, 2, 3, 4, 5]  # grows with each step
    llm.add_request("a", "the id is free", SamplingParams(max_tokens=1))
    assert [output.request_id for output in llm.step()] == ["a"]


def test_what_is_not_streamed_changes_once(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=1)
    generate(llm, "text", params)  # in float32 the last bits follow from what is cached: it is the same for both now
    (whole,) = generate(llm, "text", params)
    llm.add_request("a", "text", params, stream=False)
    changed = [output for _ in range(5) for output in llm.step()]
    assert [output.request_id for output in changed] == ["a"]
    assert not llm.has_unfinished_requests()
    assert changed[0].outputs[0].text == whole.outputs[0].text
    assert changed[0].outputs[0].logprobs == whole.outputs[0].logprobs


def test_abort(llm: LLM) -> None:
    for name in ("a", "b", "c"):
        llm.add_request(name, name, SamplingParams(max_tokens=400, n=2, ignore_eos=True))
    for _ in range(3):
        llm.step()
    llm.abort_request("a")
    llm.abort_request(["b", "unknown"])
    assert {output.request_id for output in llm.step()} == {"c"}
    llm.abort_request(["c"])
    assert not llm.has_unfinished_requests()


def test_generate_leaves_requests_of_others_alone(llm: LLM) -> None:
    llm.add_request("mine", "x", SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
    generate(llm, "y")
    seen = [output for output in llm.step() if output.request_id == "mine"]
    assert seen
    assert seen[0].finished
    assert len(seen[0].outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        (["fine", ""], "prompt"),
        (["fine", [1, 999]], "prompt"),
        (["fine", [-1]], "prompt"),
        (["fine", {"text": "x"}], "prompts"),
        (["fine", {"prompt": 3}], "prompts"),
        (["fine", "x" * 600], "prompt"),
    ],
)
def test_a_wrong_prompt_refuses_the_whole_list(llm: LLM, prompts: list[Any], param: str) -> None:
    before = llm.stats.steps_total
    with pytest.raises(RequestError) as caught:
        generate(llm, prompts)
    assert caught.value.param == param
    assert llm.stats.steps_total == before


def test_a_wrong_parameter_of_a_later_sample_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        generate(llm, "x", SamplingParams(n=3, stop_token_ids=(400,)))
    assert caught.value.param == "stop_token_ids"


def test_a_grammar_that_is_wrong_is_raised_when_the_others_have_ended(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        generate(llm, ["a", "b"], grammar=[Regex("("), None])
    assert caught.value.code == "invalid_grammar"


def test_a_failure_ends_all_samples_of_its_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.add_request("bad", "x", SamplingParams(max_tokens=400, n=3, ignore_eos=True))
    llm.step()
    run = _model(llm).run

    @torch.inference_mode()
    def poisoned(batch: Any) -> torch.Tensor | None:
        logits = run(batch)
        if logits is not None:
            logits[0] = math.nan  # one of the three
        return logits

    monkeypatch.setattr(_model(llm), "run", poisoned)
    (output,) = llm.step()
    assert output.finished
    assert isinstance(output.error, EngineError)
    assert output.error.code == "nonfinite_logits"
    assert llm.stats.running == 0


def test_a_failure_is_raised_and_the_rest_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(batch: Any) -> None:
        raise RuntimeError("the device is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(_model(llm), "run", fails)
        with pytest.raises(EngineError, match="forward pass failed"):
            generate(llm, ["a", "b"])
    assert generate(llm, "a")[0].finished


def test_an_interrupt_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(3))
    step = llm._engine.step

    def interrupted() -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        step()

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, ["a", "b"], ENDLESS)
    assert not llm.has_unfinished_requests()


HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    ({"block_size": 16}, {"page_size": 16}),
    ({"page_size": 4}, {"page_size": 4}),
    ({"num_gpu_blocks_override": 77}, {"num_pages": 77}),
    ({"max_model_len": 100}, {"max_model_len": 100}),
    ({"device": "cpu"}, {"device": "cpu"}),
    # The type is named: where a processor multiplies bfloat16, that is what `auto` takes, and pages are half as large.
    ({"kv_cache_memory": 1_000_000, "dtype": "float32"}, {"num_pages": 1_000_000 // (2 * 2 * 2 * 8 * 4)}),
    ({"gpu_memory_utilization": 1e-9, "kv_cache_memory": 512_000, "dtype": "float32"}, {"num_pages": 2000}),
]


@pytest.mark.parametrize(("options", "expected"), HONOURED, ids=lambda value: ",".join(value))
def test_options_that_show_in_the_model(folder: Path, options: dict[str, Any], expected: dict[str, Any]) -> None:
    llm = LLM(str(folder), **({"num_pages": 300} if "kv_cache_memory" not in options else {}) | options)
    info = llm._engine.info
    assert {name: getattr(info, name) for name in expected} == expected
    assert len(generate(llm, "a")[0].outputs[0].token_ids) == 8
    llm.close()


SETTINGS: list[tuple[dict[str, Any], str, Any]] = [
    ({"max_num_batched_tokens": 33}, "max_batch_tokens", 33),
    ({"max_num_seqs": 3}, "max_num_seqs", 3),
    ({"enable_prefix_caching": False}, "enable_prefix_caching", False),
    ({"seed": 9}, "seed", 9),
    ({"max_waiting": 5}, "max_waiting", 5),
    ({"jump_forward": False}, "jump_forward", False),
    ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype", "bfloat16"),
    ({"quantization": None, "swap_space": 0, "trust_remote_code": False, "tensor_parallel_size": 1}, "seed", 0),
    ({"enforce_eager": False, "pipeline_parallel_size": 1}, "seed", 0),
]


@pytest.mark.parametrize(("options", "name", "value"), SETTINGS, ids=lambda value: str(value))
def test_options_that_show_in_the_settings(folder: Path, options: dict[str, Any], name: str, value: Any) -> None:
    llm = LLM(str(folder), num_pages=300, **options)
    assert getattr(llm._config, name) == value
    assert len(generate(llm, "a")[0].outputs[0].token_ids) == 8
    llm.close()


def test_seeds_are_the_engines(folder: Path) -> None:
    """Requests that bring no seed draw from the engine's: the same engine twice gives the same, another does not."""
    sampled = SamplingParams(max_tokens=12, ignore_eos=True)
    texts = []
    for seed in (1, 1, 2):
        llm = LLM(str(folder), num_pages=300, seed=seed)
        texts.append(generate(llm, "a", sampled)[0].outputs[0].token_ids)
        llm.close()
    assert texts[0] == texts[1] != texts[2]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quantization": "bitsandbytes"}, "quantization"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
    ({"pipeline_parallel_size": 4}, "pipeline_parallel_size"),
    ({"swap_space": 4}, "swap_space"),
    ({"trust_remote_code": True}, "trust_remote_code"),
    ({"tokenizer_mode": "slow"}, "tokenizer_mode"),
    ({"speculative_model": "x"}, "speculative_model"),
    ({"dtype": "int8"}, "dtype"),
    ({"kv_cache_dtype": "fp4"}, "kv_cache_dtype"),
    ({"max_num_seqs": 0}, "max_num_seqs"),
    ({"max_num_seqs": "8"}, "max_num_seqs"),
    ({"gpu_memory_utilization": 0.0}, "memory_fraction"),
    ({"gpu_memory_utilization": 1.5}, "memory_fraction"),
    ({"num_gpu_blocks_override": 1}, "num_pages"),
    ({"block_size": -1}, "page_size"),
    ({"max_num_batched_tokens": 0}, "max_batch_tokens"),
    ({"max_model_len": 513}, "max_model_len"),
    ({"device": "cuda:7" if not torch.cuda.is_available() else "tpu"}, "device"),
]


@pytest.mark.parametrize(("options", "param"), REFUSED, ids=lambda value: str(value))
def test_what_cannot_be_honoured_is_refused_by_name(folder: Path, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        LLM(str(folder), **options)
    assert caught.value.param == param


def test_every_field_of_the_config_is_an_option(folder: Path) -> None:
    defaults = {name: getattr(EngineConfig(), name) for name in EngineConfig.__struct_fields__}
    llm = LLM(**(defaults | {"model": str(folder), "num_pages": 50}))
    assert llm._config == EngineConfig(model=str(folder), num_pages=50)
    llm.close()


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        LLM("./no-such-model")


def test_nothing_can_be_asked_after_close(folder: Path) -> None:
    llm = LLM(str(folder), num_pages=600)
    llm.add_request("a", "x", ENDLESS)
    llm.step()
    llm.close()
    assert not llm.has_unfinished_requests()
    with pytest.raises(EngineStoppedError):
        generate(llm, "x")
    llm.close()
