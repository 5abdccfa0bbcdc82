"""`bough serve`: what the file of API keys says reaches the engine."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from bough.cli.main import main
from bough.cli.parsing.options import engine_config
from bough.cli.serve import add_arguments, server_config, supervisor_config, weighted
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams

from ..support.fakes import fake_engine


def read(path: Path) -> EngineConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--api-key-file", str(path)])
    return weighted(engine_config(arguments), server_config(arguments))


def test_weights_of_keys_are_shares_of_the_engine(tmp_path: Path) -> None:
    """By the namespace of their requests, with a salt or without."""
    path = tmp_path / "keys"
    path.write_text("heavy sk-0123456789abcdef weight=3\nlight sk-0123456789abcdeg\n")
    path.chmod(0o600)
    config = read(path)
    assert config.tenant_weights == {"heavy": 3}
    engine, _ = fake_engine(max_num_seqs=8, tenant_weights=config.tenant_weights)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    for index in range(40):
        for name in ("heavy", "light"):
            namespace = f"{name}/{index}" if index % 2 else name
            request = Request(id=f"{name} {index}", prompt=(1, 2, index), namespace=namespace, sampling=sampling)
            engine.submit(request, lambda _: None)
    for _ in range(4):
        engine.step()
    assert Counter(sequence.tenant for sequence in engine._scheduler.running) == {"heavy": 6, "light": 2}
    engine.close()


def test_a_wrong_weight_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("heavy sk-0123456789abcdef weight=1000\n")
    path.chmod(0o600)
    with pytest.raises(RequestError, match="line 1 of the API keys: weight is a number from 1 to 100"):
        read(path)
    with pytest.raises(RequestError, match="weight of 'a' must be 1 to 100, got 0") as caught:
        EngineConfig(tenant_weights={"a": 0})
    assert caught.value.param == "tenant_weights"


NO_SECONDS_ABOVE_0 = ("nan", "-inf", "0", "-1")
HUGE = str(10**30)


@pytest.mark.parametrize(
    ("option", "values", "bounds"),
    [
        ("--request-timeout", NO_SECONDS_ABOVE_0, "must be above 0"),
        ("--stuck-timeout", NO_SECONDS_ABOVE_0, "must be above 0"),
        ("--drain-delay", ("nan", "-inf", "-1"), "must be at least 0"),
        ("--drain-timeout", ("nan", "-inf", "-1"), "must be at least 0"),
        ("--max-body-bytes", ("0", "-1"), "must be at least 1"),
        ("--max-responses", ("-1",), "must be at least 0"),
        ("--max-response-bytes", ("-1",), "must be at least 0"),
        ("--response-ttl", NO_SECONDS_ABOVE_0, "must be above 0"),
        ("--restart", ("-1", HUGE), "must be 0 to 1000"),
        ("--port", ("-1", "65536", HUGE), "must be 0 to 65535"),
        ("--max-num-seqs", ("0", "-1", HUGE), "must be "),
        ("--seed", (HUGE, f"-{HUGE}"), "must be "),
        ("--max-step-ms", ("nan", "-inf", "0", "-1"), "must be "),
        ("--num-pages", ("0", "-1", HUGE), "must be "),
        ("--memory-fraction", ("nan", "inf", "0", "-1"), "must be "),
    ],
)
def test_an_option_out_of_range_is_told_before_anything_starts(
    option: str, values: tuple[str, ...], bounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values:
        assert main(["serve", "--model", "/no/such/model", f"{option}={value}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{option} {bounds}" in line


def test_the_bounds_of_options_are_within_them() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    least = "--request-timeout=0.001 --stuck-timeout=0.001 --drain-timeout=0 --max-body-bytes=1 --restart=0 --port=0"
    most = "--request-timeout=inf --stuck-timeout=inf --drain-timeout=inf --restart=1000 --port=65535"
    for words in (f"{least} --drain-delay=0", f"{most} --drain-delay=inf"):
        arguments = parser.parse_args(words.split())
        assert server_config(arguments).port == arguments.port
        assert supervisor_config(arguments).restarts == arguments.restart


def test_the_drain_has_two_times() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = server_config(parser.parse_args(["--drain-delay=7", "--drain-timeout=3"]))
    assert (config.drain_delay_s, config.drain_timeout_s) == (7.0, 3.0)
    assert server_config(parser.parse_args([])).drain_delay_s == 0.0


@pytest.mark.parametrize("text", ["", "\n", "# team sk-0123456789abcdef\n"])
def test_a_source_without_a_key_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(RequestError, match=r"--api-key-file: there is no key in .*keys"):
        read(path)
    path.write_text("team sk-0123456789abcdef\n")
    monkeypatch.setenv("BOUGH_API_KEY", text)
    with pytest.raises(RequestError, match="BOUGH_API_KEY: there is no key in it"):
        read(path)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("team sk-0123456789abcdeg", "the name of an earlier key"),
        ("other sk-0123456789abcdef", "the same key as on an earlier line"),
    ],
)
def test_a_key_stands_in_one_source_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, told: str
) -> None:
    path = tmp_path / "keys"
    path.write_text("team sk-0123456789abcdef\n")
    path.chmod(0o600)
    monkeypatch.setenv("BOUGH_API_KEY", variable)
    with pytest.raises(RequestError, match=f"line 1 of the API keys: {told}"):
        read(path)
