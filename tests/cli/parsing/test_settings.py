"""Settings: command line > environment > file > default, and one line for each that is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli import serve
from bough.cli.main import main, make_parser

Parsed = Callable[..., argparse.Namespace]


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parsed:
    """Returns what a command line comes to beside a file with that text."""
    monkeypatch.chdir(tmp_path)

    def parse(line: str, file: str | None = None) -> argparse.Namespace:
        words = line.split()
        if file is not None:
            (tmp_path / "bough.toml").write_text(file)
            words += ["--config", "bough.toml"]
        return make_parser(words[:1]).parse_args(words)

    return parse


def test_each_source_goes_over_the_next(parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("serve").port == 8000
    assert parsed("serve", "[serve]\nport = 1\n").port == 1
    monkeypatch.setenv("BOUGH_PORT", "2")
    assert parsed("serve", "[serve]\nport = 1\n").port == 2
    assert parsed("serve --port 3", "[serve]\nport = 1\n").port == 3
    assert parsed("serve --port 8000", "[serve]\nport = 1\n").port == 8000  # the default, but asked for


def test_every_kind_of_option(parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parsed(
        "serve",
        'model = "some/folder"\n[serve]\nmax-num-seqs = 8\nmemory_fraction = 1\nstrict-params = true\n'
        'request-log = false\ndtype = "float16"\nprogram = ["a.py", "b.py:f"]\n',
    )
    assert (found.model, found.max_num_seqs, found.memory_fraction) == ("some/folder", 8, 1.0)
    assert (found.strict_params, found.request_log, found.dtype) == (True, False, "float16")
    assert found.program == ["a.py", "b.py:f"]
    monkeypatch.setenv("BOUGH_PROGRAM", '["c.py"]')
    monkeypatch.setenv("BOUGH_TOOLS", "tools.py")
    monkeypatch.setenv("BOUGH_REQUEST_LOG", "no")
    monkeypatch.setenv("BOUGH_MAX_STEP_MS", "12.5")
    found = parsed("serve --tools mine.py")
    assert (found.program, found.tools) == (["c.py"], ["mine.py"])  # a list is replaced, not added to
    assert (found.request_log, found.max_step_ms) == (False, 12.5)


def test_a_key_above_the_tables_is_for_every_command_that_has_it(parsed: Parsed) -> None:
    file = 'port = 1\ntemperature = 0.5\nmodel = "m"\n[chat]\nmodel = "other"\n'
    assert (parsed("serve", file).port, parsed("serve", file).model) == (1, "m")
    assert (parsed("chat", file).temperature, parsed("chat", file).model) == (0.5, "other")


def test_the_environment_names_the_file(parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text("[serve]\nport = 5\n")
    monkeypatch.setenv("BOUGH_CONFIG", "other.toml")
    assert parsed("serve").port == 5


def test_an_empty_variable_is_not_set(parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUGH_PORT", "")
    assert parsed("serve").port == 8000


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("[serve]\nport = '80'\n", "bough.toml, serve.port: must be a whole number, got '80'"),
        ("[serve]\nport = true\n", "bough.toml, serve.port: must be a whole number, got true"),
        ("[serve]\nhost = 1\n", "bough.toml, serve.host: must be a string in quotes, got 1"),
        ("[serve]\noverlap = 'yes'\n", "bough.toml, serve.overlap: must be true or false, got 'yes'"),
        ("[serve]\nmax-step-ms = 'x'\n", "bough.toml, serve.max-step-ms: must be a number, got 'x'"),
        ("[serve]\nprogram = [1]\n", "bough.toml, serve.program: must be a list of strings, got [1]"),
        ("[serve]\ndtype = 'int8'\n", "serve.dtype: must be auto, float32, bfloat16 or float16, got 'int8'"),
        ("[serve]\nprot = 1\n", "bough.toml, serve.prot: there is no such option: did you mean port?"),
        ("prot = 1\n", "bough.toml, prot: there is no such option: did you mean port?"),
        ("[server]\nport = 1\n", "bough.toml, [server]: there is no command of that name: did you mean serve?"),
        ("serve = 1\n", "bough.toml, serve: must be a table: [serve]"),
        ("[serve]\ngpu-memory-utilization = 0.9\n", "no such option: here it is memory-fraction"),
        ("[serve]\napi-key = 'sk'\n", "no such option: whoever lists processes would see it: set BOUGH_API_KEY"),
        ("[serve\n", "bough.toml is not valid TOML: Expected ']'"),
        ("[serve]\nport = 99999\n", "bough.toml, serve.port: must be 0 to 65535, got 99999"),
        ("[serve]\nmemory-fraction = 3\n", "bough.toml, serve.memory-fraction: must be above 0 and at most 1, got 3.0"),
        ("[serve]\nrequest-timeout = 0\n", "bough.toml, serve.request-timeout: must be above 0"),
    ],
)
def test_a_wrong_file_is_one_line(
    file: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bough.toml").write_text(file)
    assert status_of("serve", "--config", "bough.toml", "--model", "/no/model") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bough serve: ") and said in line, line


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("BOUGH_PORT", "http", "BOUGH_PORT needs a whole number, such as 8000; got 'http'"),
        ("BOUGH_OVERLAP", "maybe", "BOUGH_OVERLAP must be true or false, got 'maybe'"),
        ("BOUGH_DTYPE", "int8", "BOUGH_DTYPE must be auto, float32, bfloat16 or float16, got 'int8'"),
        ("BOUGH_PROGRAM", "[a]", 'BOUGH_PROGRAM must be a single value, or a JSON list such as ["a", "b"]'),
        ("BOUGH_NUM_PAGES", "1", "BOUGH_NUM_PAGES: must be at least 2"),
    ],
)
def test_a_wrong_variable_is_one_line(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, text)
    assert status_of("serve", "--model", "/no/model") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bough serve: {said}"), line


def test_a_value_of_the_command_line_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bough.toml").write_text("[serve]\nport = 80\n")
    monkeypatch.chdir(tmp_path)
    assert status_of("serve", "--config", "bough.toml", "--port", "99999") == 2
    assert "bough.toml" not in capsys.readouterr().err


def test_a_misspelt_variable_is_told(
    parsed: Parsed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BOUGH_MAX_NUM_SEQ", "BOUGH_SHOW", "BOUGH_CACHE", "BOUGH_ACCEPTANCE"):  # --show is of another command
        monkeypatch.setenv(name, "8")
    parsed("serve")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bough serve: BOUGH_MAX_NUM_SEQ has no effect: did you mean BOUGH_MAX_NUM_SEQS?"


@pytest.mark.parametrize("command", ["serve", "run", "chat", "deploy"])
def test_help_says_where_else_options_are_set(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(command, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "BOUGH_<OPTION>" in shown and "--config" in shown and f"[{command}]" in shown


def test_what_was_set_reaches_the_server(parsed: Parsed) -> None:
    config = serve.server_config(parsed("serve", "[serve]\nserved-model-name = 'm'\nmax-body-bytes = 7\n"))
    assert (config.served_model_name, config.max_body_bytes) == ("m", 7)


def status_of(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_values_may_be_spelt_as_elsewhere(parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("serve", "[serve]\ndtype = 'half'\nkv-cache-dtype = 'fp8'\n").kv_cache_dtype == "fp8_e4m3"
    monkeypatch.setenv("BOUGH_DTYPE", "bf16")
    assert parsed("serve").dtype == "bfloat16"


def test_a_table_holds_the_options_of_every_action(parsed: Parsed) -> None:
    file = "[models]\nforget = true\njson = true\n"
    assert parsed("models list", file).json is True
    assert parsed("models remove x", file).forget is True


def test_the_last_file_counts(parsed: Parsed, tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text("[serve]\nport = 1\n")
    assert parsed("serve --config first.toml", "[serve]\nport = 2\n").port == 2


def test_a_key_that_others_can_read_is_told(parsed: Parsed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = "[run]\napi_key = 'sk-0123456789abcdef'\n"
    assert parsed("run x.py", file).api_key == "sk-0123456789abcdef"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bough run: bough.toml holds an API key and can be read by other users: chmod 600 bough.toml"
    (tmp_path / "bough.toml").chmod(0o600)
    parsed("run x.py", file)
    assert capsys.readouterr().err == ""
