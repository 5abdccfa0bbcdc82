"""The site: every public name is in the reference once, docstrings become Markdown, links lead to the site's pages."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import griffe
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import bough

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def load(repository: Path, name: str) -> Any:
    return SimpleNamespace(**runpy.run_path(str(repository / "scripts" / f"{name}.py")))


# Reference


def test_every_public_name_is_in_the_reference_once(repository: Path) -> None:
    pages = "".join(path.read_text() for path in (repository / "docs/reference").glob("*.md"))
    shown = DIRECTIVE.findall(pages)
    assert len(shown) == len(set(shown))
    assert sorted(name.removeprefix("bough.") for name in shown if name.count(".") == 1) == bough.__all__
    for name in shown:
        assert exists(name), name


def exists(name: str) -> bool:
    """A public name, a module, or something that a module has."""
    module, _, last = name.rpartition(".")
    found = hasattr(importlib.import_module(module), last)
    return found or importlib.util.find_spec(name) is not None


# Docstrings

DOCSTRING = """Makes it.

size, shape   of the thing,
              in metres
s             what it is for

>>> make(1)
2

Text with  two spaces inside stays as it is."""


def test_columns_become_lists_and_examples_blocks(repository: Path) -> None:
    shown = load(repository, "docstrings").markdown(DOCSTRING)
    assert "- `size`, `shape`: of the thing,\n    in metres\n- `s`: what it is for\n" in shown
    assert "```pycon\n>>> make(1)\n2\n```\n" in shown
    assert shown.startswith("Makes it.\n\n") and shown.endswith(DOCSTRING.rpartition("\n")[2])


def test_a_heading_of_columns_stays_above_them(repository: Path) -> None:
    shown = load(repository, "docstrings").markdown("It takes\na   one\nb   two")
    assert shown == "It takes\n\n- `a`: one\n- `b`: two"


def test_fields_of_structs_are_written_out(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(
        "MAX_N = 16\n_Number = Annotated[int, Meta(le=MAX_N)]\n\n\n"
        'class Body(Struct):\n    """What comes."""\n\n    n: _Number | None = None\n    name: str\n'
    )
    extensions = griffe.load_extensions(load(repository, "docstrings").Laid())
    body = griffe.load("shapes", search_paths=[tmp_path], extensions=extensions)["Body"]
    assert body.docstring.value == (
        "What comes.\n\n```python\nn: Annotated[int, Meta(le=16)] | None = None\nname: str\n```"
    )


# Links


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("docs/server.md", "../SECURITY.md", "SECURITY.md"),
        ("docs/decisions/0001-packaging.md", "../server.md", "../server.md"),
        ("docs/decisions/0001-packaging.md", "../../CONTRIBUTING.md", "../CONTRIBUTING.md"),
        ("CONTRIBUTING.md", "docs/performance.md", "performance.md"),
        ("docs/cli.md", "server.md#tools", "server.md#tools"),
        ("docs/cli.md", "https://example.org/docs/cli.md", "https://example.org/docs/cli.md"),
        ("docs/cli.md", "../LICENSE", "../LICENSE"),
    ],
)
def test_links_are_fitted_to_the_site(repository: Path, page: str, link: str, moved: str) -> None:
    config = SimpleNamespace(docs_dir=str(repository / "docs"))
    file = SimpleNamespace(abs_src_path=str(repository / page), src_uri=page.removeprefix("docs/"))
    site = load(repository, "site")
    assert site.on_page_markdown(f"[it]({link})", SimpleNamespace(file=file), config, None) == f"[it]({moved})"


def test_bars_in_the_code_of_tables_are_not_escaped(repository: Path) -> None:
    config = SimpleNamespace(docs_dir=str(repository / "docs"))
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(repository / "docs/a.md"), src_uri="a.md"))
    site = load(repository, "site")
    row, text = r"| `a \| b` | or |", r"`a \| b`"
    assert site.on_page_markdown(f"{row}\n\n{text}", page, config, None) == f"| `a | b` | or |\n\n{text}"


def test_commands_that_ask_for_help_get_it(repository: Path) -> None:
    shown = load(repository, "site").HELP.sub(
        "", "```console\n$ bough run --help\n```\n\n```console\n$ bough run x\n```"
    )
    assert shown == "\n\n```console\n$ bough run x\n```"


def test_the_site_fetches_nothing_from_elsewhere(repository: Path, tmp_path: Path) -> None:
    """And its search works in pages opened as files: it has the index as a script, and a worker of its own."""
    source, site = tmp_path / "docs", tmp_path / "site"
    source.mkdir()
    (source / "index.md").write_text("# Start\n\nHello, `bough`.\n")
    for name in ("iframe-worker.js", "site.css"):
        (source / name).write_bytes((repository / "docs" / name).read_bytes())
    config = load_config(str(repository / "mkdocs.yml"), docs_dir=str(source), site_dir=str(site), hooks=[], nav=None)
    build(config)
    page = (site / "index.html").read_text()
    needed = re.findall(r'<(?:script|img|iframe|link rel="stylesheet")[^>]* (?:src|href)="([^"]+)"', page)
    assert {"iframe-worker.js", "site.css"} < set(needed)
    assert [url for url in needed if "//" in url] == []
    assert (site / "search" / "search_index.js").exists()
