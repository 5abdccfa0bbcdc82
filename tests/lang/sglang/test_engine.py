"""The engine in this process: single prompts, and a backend of programs at the same time."""

from __future__ import annotations

import asyncio

import pytest

import bough as sgl

PROMPTS = ["The capital of France is", "The capital of Japan is"]
PARAMS = {"max_new_tokens": 4, "temperature": 0}


def test_prompts(engine):
    outputs = engine.generate(PROMPTS, PARAMS)
    assert [output["text"].split()[0].strip(",.") for output in outputs] == ["Paris", "Tokyo"]
    assert outputs[0]["meta_info"]["finish_reason"]["type"] == "length"
    assert engine.generate(PROMPTS[0], PARAMS)["text"] == outputs[0]["text"]


def test_parameters_for_each_and_samples(engine):
    outputs = engine.generate(PROMPTS, [PARAMS, {**PARAMS, "max_new_tokens": 2}])
    assert [output["meta_info"]["completion_tokens"] for output in outputs] == [4, 2]
    samples = engine.generate(PROMPTS[0], {"max_new_tokens": 2, "temperature": 1.0, "n": 3})
    assert len(samples) == 3
    assert engine.generate("Age: ", {"max_new_tokens": 4, "regex": "[0-9]{2}"})["text"].isdigit()


def test_streams_and_tasks(engine):
    texts = [output["text"] for output in engine.generate(PROMPTS[0], PARAMS, stream=True)]
    assert texts == sorted(texts, key=len)
    assert texts[-1] == engine.generate(PROMPTS[0], PARAMS)["text"]
    infos = [one["meta_info"] for one in engine.generate(PROMPTS[0], PARAMS, stream=True, return_logprob=True)]
    assert len({one["completion_tokens"] for one in infos}) == len(infos) == len(texts) > 1
    assert all(one["output_token_logprobs_length"] == one["completion_tokens"] for one in infos)
    assert [one["finish_reason"] is None for one in infos] == [True] * (len(infos) - 1) + [False]

    async def main():
        both = await engine.async_generate(PROMPTS, PARAMS)
        stream = await engine.async_generate(PROMPTS[0], PARAMS, stream=True)
        return both, [output["text"] async for output in stream]

    both, streamed = asyncio.run(main())
    assert [output["text"] for output in both] == [output["text"] for output in engine.generate(PROMPTS, PARAMS)]
    assert streamed[-1] == texts[-1]


def test_a_backend_of_programs(engine):
    @sgl.function
    def count(s):
        s += "1, 2, 3," + sgl.gen("rest", max_tokens=4)

    assert count.run(temperature=0, backend=engine)["rest"].startswith(" 4,")
    assert sgl.get_server_info(engine)["model"]["architecture"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": "x", "sampling_params": {"temprature": 0}}, "temprature"),
        ({"prompt": "x", "sampling_params": [{}, {}]}, "1 prompts but 2 sampling_params"),
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"prompt": "x", "image_data": "cat.png"}, "image_data"),
        ({}, "a prompt is needed"),
    ],
)
def test_what_cannot_be_had_is_refused(engine, arguments, message):
    with pytest.raises(ValueError, match=message):
        engine.generate(**arguments)
