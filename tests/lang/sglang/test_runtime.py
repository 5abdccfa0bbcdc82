"""A server started by the program, and an endpoint of one that is there."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import bough as sgl

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def runtime(default_model: Path) -> Iterator[sgl.Runtime]:
    runtime = sgl.Runtime(model_path=str(default_model), tp_size=1, mem_fraction_static=0.1, random_seed=1)
    yield runtime
    runtime.shutdown()
    runtime.shutdown()


@sgl.function
def capital(s, country):
    s += sgl.user(f"What is the capital of {country}?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))
    if "Tokyo" in s["answer"]:
        forks = s.fork(2)
        forks += sgl.user("Say more.") + sgl.assistant(sgl.gen("more", max_tokens=4))
        forks.join()


def test_programs(runtime):
    sgl.set_default_backend(runtime)
    try:
        state = capital.run("Japan", temperature=0)
        assert "Tokyo" in state["answer"]
        assert len(state["more"]) == 2
        states = capital.run_batch([{"country": "Japan"}, {"country": "Italy"}], temperature=0)
        assert states[0]["answer"] == state["answer"]
        assert "".join(capital.run("Italy", temperature=0, stream=True).text_iter("answer")) == states[1]["answer"]
    finally:
        sgl.set_default_backend(None)


def test_an_endpoint(runtime):
    with sgl.RuntimeEndpoint(runtime.url) as endpoint:
        state = capital.run("France", temperature=0, return_logprob=True, backend=endpoint)
        assert state.get_meta_info("answer")["output_token_logprobs"][0][2]
        assert endpoint.get_model_name() == runtime.get_model_name()


def test_server_info_and_cache(runtime):
    info = sgl.get_server_info(runtime)
    assert info["version"] == sgl.__version__
    assert info == runtime.get_server_info() or info["model"] == runtime.get_server_info()["model"]
    assert sgl.flush_cache(runtime)
    prefix = "A long prefix that several programs begin with, word for word, up to here."
    runtime.cache_prefix(prefix)

    @sgl.function
    def goes_on(s):
        s += prefix + " And" + sgl.gen("rest", max_tokens=1)

    assert goes_on.run(backend=runtime).get_meta_info("rest")["cached_tokens"] >= 12


def test_single_prompts(runtime):
    params = {"max_new_tokens": 4, "temperature": 0}
    one = json.loads(runtime.generate("The capital of France is", params, return_logprob=True))
    assert one["text"].startswith(" Paris")
    assert one["meta_info"]["completion_tokens"] == 4
    assert len(one["meta_info"]["output_token_logprobs"]) == 4
    two = json.loads(runtime.generate(["The capital of France is", "The capital of Japan is"], params))
    assert [answer["text"].split()[0].strip(",.") for answer in two] == ["Paris", "Tokyo"]

    async def streamed():
        return [text async for text in runtime.async_generate("The capital of France is", params)]

    assert "".join(asyncio.run(streamed())) == one["text"]
    with pytest.raises(ValueError, match="lora_path"):
        runtime.generate("x", params, lora_path="adapter")


def test_the_tokenizer(runtime):
    tokenizer = runtime.get_tokenizer()
    tokens = tokenizer.encode("The capital of France")
    assert tokenizer.decode(tokens) == "The capital of France"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_template_by_name(runtime):
    sgl.RuntimeEndpoint(runtime.url, chat_template_name="chatml").close()
    for name in ("llama-3-instruct", "vicuna_v1.1"):
        with pytest.raises(ValueError, match="the model's own template is used"):
            sgl.RuntimeEndpoint(runtime.url, chat_template_name=name)


def test_a_server_that_does_not_start_says_why():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sgl.BoughError, match=f"cannot listen on 127.0.0.1:{port}"):
            sgl.Runtime(port=port)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"tp_size": 2}, "tp_size"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"tokenizer_path": "another"}, "tokenizer_path"),
        ({"dtypo": "half"}, "dtypo"),
        ({"mem_fraction_static": 7}, "memory_fraction"),
    ],
)
def test_arguments_that_are_refused(arguments, param):
    with pytest.raises(sgl.RequestError) as caught:
        sgl.ServerArgs(model_path="m", **arguments)
    assert caught.value.param == param


def test_arguments_that_are_taken():
    args = sgl.ServerArgs(
        model_path="m", dtype="half", disable_radix_cache=True, context_length=512, max_total_tokens=100, page_size=10,
        schedule_policy="lpm", dp_size=1, log_level="error", port=0, api_key="secret", max_num_seqs=3,
    )  # fmt: skip
    assert args.engine_options == {
        "model": "m", "dtype": "float16", "enable_prefix_caching": False, "max_model_len": 512, "page_size": 10,
        "num_pages": 11, "max_num_seqs": 3,
    }  # fmt: skip
    assert "secret" not in repr(args)
