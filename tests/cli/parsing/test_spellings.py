"""Options of vLLM and SGLang: each has its counterpart here, or a line that says what to do instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bough.cli.main import make_parser
from bough.cli.parsing.options import engine_config
from bough.cli.parsing.settings import SettingError
from bough.cli.parsing.spellings import SPELLINGS, translate
from bough.runtime.protocol.config import VALUES, EngineConfig


def config_of(line: str, command: str = "serve") -> EngineConfig:
    return engine_config(make_parser([command]).parse_args([command, *line.split()]))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--model-path m --context-length 99", "--model m --max-model-len 99"),
        ("--gpu-memory-utilization 0.5", "--memory-fraction 0.5"),
        ("--mem-fraction-static=0.5", "--memory-fraction 0.5"),
        ("--block-size 16", "--page-size 16"),
        ("--page-size 16 --max-model-len 9 --max-num-seqs 3", "--page-size=16 --max-model-len=9 --max-num-seqs=3"),
        ("--max-running-requests 3 --chunked-prefill-size 64", "--max-num-seqs 3 --max-batch-tokens 64"),
        ("--tensor-parallel-size 1 --tp 1 -tp 1 --tp=1", ""),
        ("--dtype half", "--dtype float16"),
        ("--dtype=half", "--dtype float16"),
        ("--dtype float16", "--dtype float16"),
        ("--dtype bfloat16", "--dtype bfloat16"),
        ("--dtype auto", ""),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3"),
        ("--enforce-eager --disable-radix-cache", "--no-cuda-graphs --no-enable-prefix-caching"),
        ("--random-seed -5 --enable-deterministic-inference", "--seed -5 --deterministic"),
        ("--swap-space 0 --load-format auto", ""),
    ],
)
def test_a_spelling_means_ours(theirs: str, ours: str) -> None:
    assert config_of(theirs) == config_of(ours)


@pytest.mark.parametrize("method", ["awq", "gptq", "gguf"])
def test_formats_of_checkpoints_may_be_named(method: str) -> None:
    assert config_of(f"--quantization {method}").quantization == method


@pytest.mark.parametrize(
    "line",
    ["--tp 2", "--tensor-parallel-size=4", "--trust-remote-code", "--api-key sk", "--revision main", "--tokenizer x",
     "--enable-lora", "--lora-modules a=b", "--swap-space 4", "--speculative-config {}", "--tp"],
)  # fmt: skip
def test_others_are_refused_with_what_to_do(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        config_of(line)
    assert ended.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    name = re.split("[ =]", line)[0]
    advice = "leave|set|write|start|merge|make|requests"
    assert re.match(rf"bough serve: {name}.* is not supported: .*({advice})", told), told


def test_every_row_leads_to_an_option_that_there_is() -> None:
    parser = make_parser(["serve"])._actions[-1].choices["serve"]  # type: ignore[index]
    options = parser.options
    for spelling in SPELLINGS:
        assert bool(spelling.ours or spelling.switch) != bool(spelling.advice), spelling
        assert (spelling.ours or spelling.switch or "--port") in options
        assert not options & set(spelling.names)
        for name in spelling.names:
            words = [name] if spelling.bare or spelling.switch else [name, spelling.only or "1"]
            if spelling.advice and not spelling.only:
                with pytest.raises(SettingError, match=re.escape(spelling.advice)):
                    translate(words, options)
            else:
                assert set(translate(words, options)) <= {spelling.ours, spelling.switch, "1"}
    for option, values in VALUES.items():
        action = next(one for one in parser._actions if option == one.dest)
        assert set(values.values()) <= set(action.choices) and not set(values) & set(action.choices)


def test_texts_that_look_like_options_are_left_alone() -> None:
    options = frozenset({"--system", "--model"})
    assert translate(["--model=--tp", "--system", "a --tp 2", "--", "--tp", "2"], options) == [
        "--model=--tp", "--system", "a --tp 2", "--", "--tp", "2",
    ]  # fmt: skip


def test_an_option_of_the_server_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config_of("--log-requests", "chat")
    assert "--log-requests is --request-log of bough serve" in capsys.readouterr().err


def test_api_key_is_never_taken_for_the_file_of_keys() -> None:
    found = make_parser(["run"]).parse_args(["run", "x.py", "--api-key", "sk"])
    assert found.api_key == "sk"  # of `run`, which has that option


def test_the_page_names_every_spelling(repository: Path) -> None:
    page = (repository / "docs/cli.md").read_text()
    names = {name for spelling in SPELLINGS for name in spelling.names} | {v for row in VALUES.values() for v in row}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
