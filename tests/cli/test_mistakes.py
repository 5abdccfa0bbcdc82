"""Mistakes on the command line: one line each, which names what is wrong and says what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bough.cli.main import main

from ..support.tiny_model import write_tiny_model

PROGRAM = """\
import bough

@bough.function
def brief(s, text: str, words: int = 30):
    s += f"Summarise in {words} words: {text}" + bough.gen("summary", max_tokens=4)
"""
TWO = PROGRAM + PROGRAM.replace("brief", "long").removeprefix("import bough\n")

MISTAKES: tuple[tuple[str, int, str], ...] = (
    ("", 2, r"COMMAND is missing: bough \{serve\|run\|.*bough --help"),
    ("srve", 2, r"no command 'srve': did you mean bough serve\?"),
    ("download", 2, r"no command 'download': did you mean bough pull\?"),
    ("--port 8000 serve", 2, r"--port comes after the command: bough COMMAND --port"),
    ("serve --prot 8000", 2, r"no option --prot: did you mean --port\?"),
    ("serve --max-num 8", 2, r"no option --max-num: did you mean --max-num-seqs\?"),
    ("serve --api-key sk-1", 2, r"--api-key is not supported: .* set BOUGH_API_KEY, or write --api-key-file"),
    ("serve --port http", 2, r"--port needs a whole number, such as 8000; got 'http'"),
    ("serve --port 99999", 2, r"--port must be 0 to 65535, got 99999"),
    ("serve --dtype float8", 2, r"--dtype must be auto, .* or float16, got 'float8': did you mean float"),
    ("serve --page-size", 2, r"--page-size needs a value: --page-size N"),
    ("serve --jump-forward=yes", 2, r"--jump-forward takes no value, got 'yes': write --jump-forward or --no-jump-f"),
    ("serve --tensor-parallel-size 2", 2, r"--tensor-parallel-size 2 is not supported: .*start a server for each"),
    ("serve org/name", 2, r"no place for 'org/name': did you mean --model org/name\?"),
    ("serve 8001", 2, r"no place for '8001': did you mean --port 8001\?"),
    ("serve brief.py", 2, r"no place for 'brief\.py': did you mean --program brief\.py\?"),
    ("serve -p 8000", 2, r"no option -p: did you mean --port\?"),
    ("chat hello", 2, r"no place for 'hello': bough chat --help shows"),
    ("run brief.py hello", 2, r"no place for 'hello': did you mean --arg text=hello\?"),
    ("run two.py:long --arg text=a 5", 2, r"no place for '5': did you mean --arg words=5\?"),
    ("run brief.py --text hi", 2, r"no option --text: did you mean --arg text=hi\?"),
    ("deploy brief.py --text hi", 2, r"no option --text: did you mean --arg text=hi\?"),
    ("run brief.py --text=hi", 2, r"no option --text: did you mean --arg text=hi\?"),
    ("run brief.py -t 0", 2, r"no option -t: did you mean --temperature\?"),
    ("run wrong.py hello", 2, r"no place for 'hello': bough run --help shows"),
    ("schema s3.json", 2, r"no command 's3\.json': did you mean bough schema check s3\.json\?"),
    ("run", 2, r"FILE\[:FUNCTION\] is missing: bough run FILE"),
    ("run breif.py", 2, r"no file breif.py: did you mean brief.py\?"),
    ("run brief.py", 2, r"brief needs --arg text=\.\.\."),
    ("run brief.py --arg txt=hello", 2, r"brief has no argument 'txt': did you mean --arg text=\.\.\.\?"),
    ("run brief.py text=hello", 2, r"no place for 'text=hello': did you mean --arg text=hello\?"),
    ("run brief.py --arg text", 2, r"--arg must be NAME=VALUE, got 'text'"),
    ("run brief.py --arg text=@esay.txt", 2, r"--arg text: there is no file esay.txt: did you mean essay.txt\?"),
    ("run brief.py --arg text=a --arg words=few", 2, r"--arg words must be a whole number for brief, got 'few'"),
    ("run two.py", 2, r"several programs: name one, two.py:brief, two.py:long"),
    ("run two.py:breif", 2, r"no program 'breif': did you mean two.py:brief\?"),
    ("run empty.py", 2, r"has no program: mark a function in it with @bough.function"),
    ("run wrong.py", 2, r"wrong\.py:2: invalid syntax: def f\(:"),
    ("run .", 2, r"\. is a folder: name a Python file in it"),
    ("run brief.py --arg text=a --timeline no/x.html", 2, r"--timeline: there is no folder no: create it first"),
    ("run brief.py --arg text=a --model no/model", 3, r"no model 'no/model'|no folder 'no/model'"),
    ("chat --config bough.tml", 2, r"--config: there is no file bough.tml: check the path"),
    ("pull huge", 3, r"no model 'huge' to pull: choose smollm2-135m, organisation/name"),
    ("pull smollm2-135m --sha256 abc", 2, r"--sha256 takes the 64 hexadecimal digits .*, got 'abc': name the file"),
    ("models info smollm", 2, r"no model 'smollm' on this machine: did you mean smollm2-135m\?"),
    ("schema", 2, r"ACTION is missing: bough schema \{check\}"),
    ("completion powershell", 2, r"SHELL must be bash, zsh or fish, got 'powershell'"),
    ("deploy brief.py --arg sise=1", 2, r"brief has no argument 'sise': it takes text, words"),
    ("models rm some/model", 2, r"no command 'rm': did you mean bough models remove\?"),
    ("models remove ..", 3, r"\.\. is a path, not a name of the cache: remove it as you do other files"),
    ("models info brief.py", 3, r"brief\.py: not a GGUF file"),
    ("models --json remove x", 2, r"--json is for list and info: leave it out"),
    ("models list --config bad.toml", 2, r"bad\.toml is not valid TOML: Expected ']' .*line 1"),
    ("chat --config key.toml", 2, r"key\.toml, chat\.sistem: there is no such option: did you mean system\?"),
    ("chat --config .", 2, r"--config: \. cannot be read \(Is a directory\): check the path and its rights"),
    ("chat --load essay.txt", 2, r"--load: essay\.txt is not a saved conversation .*: choose another"),
    ("chat --load .", 2, r"--load: \. is not a file: choose another one"),
    ("chat --temperature -1", 2, r"--temperature must be at least 0, got -1"),
    ("chat --max-tokens 0", 2, r"--max-tokens must be at least 1, got 0"),
    ("chat --device gpu", 2, r"--device must be auto, cpu, cuda or cuda:0, .*; got 'gpu'"),
    ("chat --model short.gguf", 3, r"short\.gguf: the file ends inside the header"),
    ("chat --model ~nobody/x.gguf", 3, r"no model '~nobody/x\.gguf': not a folder, a \.gguf file, or a known model"),
    ("chat --model smollm2-135", 3, r"no model 'smollm2-135': .*: did you mean smollm2-135m\?"),
    ("serve --api-key-file keys", 2, r"--api-key-file: keys cannot be read \(No such file or directory\): check"),
    ("serve --api-key-file essay.txt", 2, r"--api-key-file: there is no key in essay\.txt"),
    ("serve --served-model-name=", 2, r"--served-model-name must not be empty: leave it out"),
    ("serve --host 0.0.0.0", 2, r"can be reached from other machines, and no API key is set\. Set BOUGH_API_KEY or"),
    ("serve --tools brief.py", 2, r"--tools: brief\.py has no function that is marked with @bough\.tool"),
    ("run brief.py --arg text=a --arg text=b", 2, r"--arg text is given twice: leave one of them out"),
    ("run brief.py --arg text=@.", 2, r"--arg text: '@\.' cannot be read as text \(Is a directory\): name a text file"),
    ("run brief.py --arg text=a --arg temperature=hot", 2, r"--arg temperature must be a number, got 'hot'"),
    ("run brief.py --arg text=a --max-tokens -5", 2, r"--max-tokens must be at least 0, got -5"),
    ("run brief.py --arg text=a --timeline .", 2, r"--timeline: \. is a folder: name a file in it"),
    ("run brief.py --arg text=a --url localhost", 2, r"--url must be an address such as http://127\.0\.0\.1:8000, got"),
    ("run brief.py --arg text=a --url http://[::1", 2, r"--url must be an address such as"),
    (
        "run brief.py --arg text=a --url http://127.0.0.1:9",
        1,
        r"at http://127\.0\.0\.1:9 cannot be reached \(.*start it",
    ),
    (
        "run brief.py --url http://x --num-pages 9",
        2,
        r"--num-pages does nothing beside --url, .*: leave one of them out",
    ),
    ("run brief.py --arg text=a --api-key x", 2, r"--api-key is the key of a server: give its --url too"),
    ("run brief.py --explain --report", 2, r"--explain runs nothing, so --report does nothing: leave one of them out"),
    ("run null.py", 2, r"null\.py: source code .* contain null bytes"),
    ("deploy brief.py --show --output x.json", 2, r"--output cannot stand beside --show: leave one of them out"),
    ("deploy no.json", 2, r"no\.json cannot be read \(No such file or directory\): check the path"),
    ("deploy brief.py --output no/x.json", 1, r"no/x\.json: No such file or directory"),
    ("deploy brief.py --url ftp://x", 2, r"--url must be an address such as http://127\.0\.0\.1:8000, got 'ftp://x'"),
    ("schema check no.json", 2, r"no\.json cannot be read \(No such file or directory\): check the path"),
    ("schema check", 2, r"SCHEMA\.json is missing: bough schema check SCHEMA\.json \[INSTANCE\.json \.\.\.\]"),
    ("pull short.gguf", 2, r"short\.gguf is on this machine already: use it with --model short\.gguf"),
    ("pull https://a:b@example.org/x.gguf", 3, r"an address with a password would be stored on disk: leave out"),
    ("bench programs --quik", 2, r"no option --quik: did you mean --quick\?"),
    ("bench programs --onl mmlu", 2, r"no option --onl: did you mean --only\?"),
)

VARIABLES: tuple[tuple[str, str, str, int, str], ...] = (
    ("BOUGH_NUM_PAGES", "many", "chat", 2, r"BOUGH_NUM_PAGES needs a whole number, such as 8; got 'many'"),
    ("BOUGH_DTYPE", "fp8", "chat", 2, r"BOUGH_DTYPE must be auto, float32, bfloat16 or float16, got 'fp8'"),
    ("BOUGH_LOG", "loud", "models", 2, r"bough: BOUGH_LOG must be debug, info, warning, error or critical, got 'loud'"),
    ("BOUGH_CONFIG", "no.toml", "chat", 2, r"BOUGH_CONFIG: there is no file no\.toml: check the path"),
    (
        "BOUGH_CACHE",
        "essay.txt",
        "pull a/b:Q4",
        3,
        r"pinned revision cannot be read \(Not a directory\): check BOUGH_CACHE",
    ),
    ("HF_ENDPOINT", "nonsense", "pull a/b:Q4", 3, r"HF_ENDPOINT: 'nonsense' is not a URL: give one that begins"),
    ("HF_ENDPOINT", "http://example.org", "pull a/b:Q4", 3, r"HF_ENDPOINT: http://example\.org is not encrypted"),
    ("HF_TOKEN", "\u00e9", "pull a/b:Q4", 3, r"HF_TOKEN contains characters that no token has: copy it again"),
)
"""Variables, their values, and what comes of a command then."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's files."""
    folder = tmp_path_factory.mktemp("desk")
    for name, text in {
        "brief.py": PROGRAM, "two.py": TWO, "empty.py": "x = 1\n", "wrong.py": "import bough\ndef f(:\n",
        "essay.txt": "", "null.py": "import bough\n\0", "short.gguf": "GGUF", "bad.toml": "[chat\n",
        "key.toml": "[chat]\nsistem = 'x'\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("line", "status", "said"), MISTAKES, ids=[line or "nothing" for line, *_ in MISTAKES])
def test_a_mistake_gets_one_line_with_the_next_step(
    line: str, status: int, said: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("BOUGH_CACHE", str(desk / "cache"))
    assert_one_line(line, status, said, capsys)


@pytest.mark.parametrize(("name", "value", "line", "status", "said"), VARIABLES)
def test_a_variable_with_a_bad_value_is_one_line(
    name: str,
    value: str,
    line: str,
    status: int,
    said: str,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("BOUGH_CACHE", str(desk / "cache"))
    monkeypatch.setenv(name, value)
    assert_one_line(line, status, said, capsys)


def assert_one_line(line: str, status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ended = main(line.split())
    except SystemExit as end:
        ended = int(end.code or 0)
    captured = capsys.readouterr()
    assert (ended, captured.out) == (status, "")
    (shown,) = captured.err.splitlines()
    assert re.match(r"bough( [a-z]+)*: ", shown)
    assert re.search(said, shown), shown


def test_a_mistake_in_users_code_shows_users_lines_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fails.py"
    file.write_text(PROGRAM.replace("    s +=", "    1 / (words - 30)\n    s +="))
    model = write_tiny_model(tmp_path / "tiny")
    assert main(["run", str(file), "--arg", "text=x", "--model", str(model), "--num-pages", "64"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("bough run: your code failed:\n")
    assert "ZeroDivisionError" in shown and "line 5, in brief" in shown and "1 / (words - 30)" in shown
    assert re.findall('File "(.*?)"', shown) == [str(file)]


def test_a_file_that_fails_while_it_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loads.py"
    file.write_text("import bough\nimport no_such_module\n")
    assert main(["run", str(file)]) == 1
    shown = capsys.readouterr().err
    assert re.findall('File "(.*?)", line (.*?),', shown) == [(str(file), "2")]
    assert shown.rstrip().endswith("No module named 'no_such_module'")


def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("bough.runtime.checkpoints.fetch.installed_file", lambda model: None)
    assert main(["pull"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not writable (Not a directory): set BOUGH_CACHE to a writable folder" in line
