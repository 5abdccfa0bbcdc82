"""Flags made from EngineConfig: one for each field, explained, typed, and put back into an equal config."""

from __future__ import annotations

import argparse
import re
from typing import Any

import msgspec
import pytest

from bough.cli.parsing.options import add_engine_options, engine_config
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import RequestError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bough test")
    add_engine_options(made)
    return made


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def given(name: str, value: object) -> list[str]:
    """The words that set a field to a value."""
    if isinstance(value, bool):
        return [flag(name) if value else flag("no_" + name)]
    return [flag(name), str(value)]


OTHER: dict[str, Any] = {
    "model": "some/folder",
    "dtype": "bfloat16",
    "kv_cache_dtype": "float16",
    "device": "cuda:1",
    "max_model_len": 77,
    "max_num_seqs": 3,
    "max_batch_tokens": 99,
    "max_step_ms": 12.5,
    "page_size": 16,
    "num_pages": 12,
    "kv_cache_memory": 1 << 20,
    "memory_fraction": 0.5,
    "enable_prefix_caching": False,
    "max_waiting": 2,
    "max_states": 4,
    "seed": -1,
    "jump_forward": False,
    "speculation": "off",
    "quantization": "int4",
    "activations": "mixed",
    "attention_backend": "torch",
    "overlap": False,
    "cuda_graphs": False,
    "max_decode_steps": 2,
    "deterministic": True,
}


FLAGS = [name for name in EngineConfig.__struct_fields__ if name != "tenant_weights"]
"""Weights come with the file of API keys."""


def test_no_flags_are_the_defaults(parser: argparse.ArgumentParser) -> None:
    assert engine_config(parser.parse_args([])) == EngineConfig()


def test_every_field_is_tried_here() -> None:
    assert set(OTHER) == set(FLAGS)
    assert all(value != getattr(EngineConfig(), name) for name, value in OTHER.items())


@pytest.mark.parametrize("name", OTHER)
def test_each_flag_sets_its_field(parser: argparse.ArgumentParser, name: str) -> None:
    value = OTHER[name]
    arguments = given(name, value)
    config = engine_config(parser.parse_args(arguments))
    assert config == msgspec.structs.replace(EngineConfig(), **{name: value})


def test_all_flags_at_once(parser: argparse.ArgumentParser) -> None:
    arguments = [part for name, value in OTHER.items() for part in given(name, value)]
    assert engine_config(parser.parse_args(arguments)) == EngineConfig(**OTHER)


def test_each_flag_is_explained_with_its_default(parser: argparse.ArgumentParser) -> None:
    shown = " ".join(parser.format_help().split())
    for name in FLAGS:
        assert re.search(rf"{flag(name)}\b", shown), name
    for action in parser._actions:
        assert action.help, action.option_strings
        default = action.default
        if default is None or isinstance(default, bool) or action.dest == "help":
            continue
        assert f"(default: {default})" in action.help


def test_an_explanation_of_several_lines_is_shown_whole(parser: argparse.ArgumentParser) -> None:
    shown = " ".join(parser.format_help().split())
    lines = [line for line in (EngineConfig.__doc__ or "").splitlines() if line.startswith("    ") and line.strip()]
    assert len(lines) >= len(FLAGS)
    for line in lines:
        name, text = line.split(maxsplit=1)
        assert " ".join((text if name in EngineConfig.__struct_fields__ else line).split()) in shown


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--dtype", "int8"], "--dtype"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype"),
        (["--memory-fraction", "x"], "--memory-fraction"),
        (["--jump-forward=yes"], "--jump-forward"),
        (["--page-size"], "--page-size"),
        (["--tensor-parallel", "2"], "--tensor-parallel"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_the_parser(
    parser: argparse.ArgumentParser, arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(arguments)
    assert caught.value.code == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--num-pages", "1"], "num_pages"),
        (["--memory-fraction", "1.5"], "memory_fraction"),
        (["--memory-fraction", "nan"], "memory_fraction"),
        (["--page-size", "-4"], "page_size"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_config(
    parser: argparse.ArgumentParser, arguments: list[str], name: str
) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        engine_config(parser.parse_args(arguments))
    assert caught.value.param == name
