"""The documents: links lead somewhere, commands parse, and every block of Python runs."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import bough
from bough.cli import bench
from bough.cli.main import main
from bough.lang.backends.mock import make_text
from bough.lang.record.options import SamplingOptions
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.request import Request
from bough.server.app import Routes
from bough.server.config import ServerConfig
from bough.server.http.connection import Lifecycle
from bough.server.service import Service

from ..server.conftest import running
from ..server.fake_client import FakeClient, Script
from ..support.pages import blocks, prose, run_page
from ..support.tiny_model import write_tiny_model

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
MAKE = re.compile(r"\bmake ((?:[A-Z_]+=\S+ )*)([a-z-]+)")
NAME = re.compile(r"`(bough\.[\w.]+)")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
PYTHON_PAGES = (
    "README.md",
    "docs/backends.md",
    "docs/constraints.md",
    "docs/language.md",
    "docs/migrating-from-sglang.md",
    "docs/offline.md",
    "docs/seeing.md",
    "docs/server.md",
)
GUIDES = ("docs/cookbook.md", "docs/tutorial.md")  # tests/docs/test_guides.py runs these


def documents(repository: Path) -> list[Path]:
    return sorted([*repository.glob("*.md"), *(repository / "docs").rglob("*.md")])


# Links


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    dead = []
    for link in LINK.findall(document.read_text()):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


def test_relative_links_lead_somewhere(repository: Path) -> None:
    paths = documents(repository)
    assert len(paths) > 5
    assert {path.name: dead for path in paths if (dead := dead_links(path))} == {}


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# A `part`\n[here](page.md) [part](page.md#a-part) [own](#a-part) [web](https://example.org) "
        "[gone](gone.md) [nowhere](page.md#b) [nor](#here)"
    )
    assert dead_links(document) == ["gone.md", "page.md#b", "#here"]


def test_the_index_leads_to_every_page(repository: Path) -> None:
    docs = repository / "docs"
    linked = {link for link in LINK.findall((docs / "index.md").read_text()) if link.endswith(".md")}
    assert linked == {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}


# Commands


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_shown_are_targets_of_the_makefile(repository: Path, name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    code = re.findall(r"^\$ (make .*?)(?:  .*)?$|`(make [^`]+)`", (repository / name).read_text(), flags=re.MULTILINE)
    shown = {match[2] for first, second in code for match in MAKE.finditer(first or second)}
    assert shown
    assert shown <= targets


def command_lines(text: str) -> list[list[str]]:
    """The arguments of `bough` wherever a page shows it: after a prompt, or in prose if nothing is left to fill in.

    A command that is only named gets --help.
    """
    typed = re.findall(r"^\$ (?:\.venv/bin/)?bough (.+)$", text, flags=re.MULTILINE)
    named = [line for line in re.findall(r"`bough ([a-z-][^`]*)`", prose(text)) if not PLACEHOLDER.search(line)]
    lines = [shlex.split(line, comments=True) for line in (*typed, *named)]
    return [[*line, "--help"] if len(line) == 1 and line[0].isalpha() else line for line in lines]


def parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the exit status of `bough` if its commands did nothing; 2 for a line that it does not understand."""
    for command in ("chat", "completion", "deploy", "models", "pull", "run", "schema", "serve"):
        monkeypatch.setattr(importlib.import_module(f"bough.cli.{command}"), "run", lambda parsed: 0)
    monkeypatch.setattr(bench, "run", _parse_bench)
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def _parse_bench(parsed: argparse.Namespace) -> int:
    bench.read(parsed.name, parsed.options)
    return 0


def test_command_lines_parse(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for path in documents(repository) for line in command_lines(path.read_text())]
    assert len(lines) > 15
    assert {line[0] for line in lines} >= {"bench", "chat", "deploy", "pull", "run", "schema", "serve"}
    assert [line for line in lines if parse(line, monkeypatch) != 0] == []


def test_a_wrong_command_line_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "`bough serve --prot 1` `bough run FILE` `bough pul` `bough bench programs --no-such`\n"
        "```console\n$ .venv/bin/bough run x.py --no-such  # why\n```\n"
    )
    lines = command_lines(text)
    assert lines[:2] == [["run", "x.py", "--no-such"], ["serve", "--prot", "1"]]
    assert [parse(line, monkeypatch) for line in lines] == [2, 2, 2, 2]


# Names


def resolve(name: str) -> object:
    """Resolves a dotted name; imports modules on the way."""
    value: Any = bough
    path = "bough"
    for part in name.rstrip(".").split(".")[1:]:
        path = f"{path}.{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(path)
    return value


def test_names_of_the_package_exist(repository: Path) -> None:
    names = {name for path in documents(repository) for name in NAME.findall(prose(path.read_text()))}
    assert {"bough.flush_cache", "bough.lang.backend.Backend"} <= names
    for name in names:
        resolve(name)


def test_a_wrong_name_is_seen() -> None:
    with pytest.raises(ImportError):
        resolve("bough.lang.no_such")


def first_cells(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", section, flags=re.MULTILINE)]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_all_routes_are_named(repository: Path) -> None:
    cells = first_cells((repository / "docs/server.md").read_text(), "Routes")
    named = {route for cell in cells for route in re.findall(r"`([A-Z]+ /[^`]+)`", cell[0])}
    table = Routes(Service(FakeClient(), ServerConfig(), Lifecycle())).table()
    assert named == {f"{method} {path.replace(':path', '')}" for method, path, _ in table}


def test_all_engine_options_are_named_with_their_defaults(repository: Path) -> None:
    rows = first_cells((repository / "docs/cli.md").read_text(), "Engine options")
    told = {row[0].strip("`"): row[2].strip("`") for row in rows}
    # Weights come with the file of API keys.
    assert tuple(told) == tuple(name for name in EngineConfig.__struct_fields__ if name != "tenant_weights")
    config = EngineConfig()
    shown = {True: "yes", False: "no"}
    for name, text in told.items():
        default = getattr(config, name)
        assert default is None or text == (shown[default] if isinstance(default, bool) else str(default)), name


def test_all_options_of_gen_are_named(repository: Path) -> None:
    rows = first_cells((repository / "docs/language.md").read_text(), "Options of `gen`")
    named = set(re.findall(r"`(\w+)`", "".join(f"{row[0]} {row[1]}" for row in rows)))
    aliases = {"return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"}
    assert set(SamplingOptions.__annotations__) - aliases <= named


# Python


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Stand-ins for what pages use: scripted answers, a server before a scripted engine, a tiny random model."""
    monkeypatch.chdir(tmp_path)
    local = functools.partial(bough.MockBackend, {"country": " France"})
    monkeypatch.setattr(bough, "LocalBackend", local)
    monkeypatch.setattr(bough, "Engine", lambda model_path: local())
    llm = functools.partial(bough.LLM, write_tiny_model(tmp_path / "model"), num_pages=1024)
    monkeypatch.setattr(bough, "LLM", lambda model: llm())
    engine = FakeClient(lambda request: Script(pieces=(_answer(request),)))
    config = ServerConfig(port=0, served_model_name="smollm2-135m")
    with running(engine, config) as server:
        clients = {"http://127.0.0.1:8000/v1": server.openai(), "http://127.0.0.1:8000": server.anthropic()}

        def connect(*, base_url: str, api_key: str) -> Any:
            return clients[base_url]

        monkeypatch.setattr(openai, "OpenAI", connect)
        monkeypatch.setattr(anthropic, "Anthropic", connect)
        yield local
    bough.set_default_backend(None)


def _answer(request: Request) -> str:
    return "The answer." if request.grammar is None else make_text(request.grammar, "answer")


@pytest.mark.parametrize("name", PYTHON_PAGES)
def test_blocks_of_python_run(name: str, repository: Path, tmp_path: Path, anywhere: Callable[[], Any]) -> None:
    names = run_page(repository / name, tmp_path)
    assert names.keys() & {"accepts", "bough", "client", "openai", "sgl"}


def test_only_these_pages_have_blocks_of_python(repository: Path) -> None:
    found = [path for path in documents(repository) if blocks(path.read_text(), "python")]
    assert sorted(path.relative_to(repository).as_posix() for path in found) == sorted((*PYTHON_PAGES, *GUIDES))


def test_the_first_program_runs(repository: Path, tmp_path: Path, anywhere: Callable[[], Any]) -> None:
    brief = run_page(repository / "README.md", tmp_path)["brief"]
    backend = anywhere()
    assert brief.run("any text", backend=backend).ret_value == "(title)\n(place)\nnature (75% nature)"
    assert len(backend.requests) == 1


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nimport bough\n```\n\n```text\nno code\n```\n\n```python\nbough.no_such\n```\n"
    )
    with pytest.raises(AttributeError) as failure:
        run_page(page, tmp_path)
    assert "bough" in str(failure.value)
    assert failure.traceback[-1].lineno + 1 == 12
