"""Rules of importing that the contracts of import-linter in pyproject.toml cannot express."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("benchmarks", "cli", "constrain", "kernels", "lang", "radix", "runtime", "server")


def violations(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """The wrong imports of a module of `package`, those inside its functions too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(level=0, module=str(module)):
                modules = [module]
            case ast.ImportFrom(level=level, module=None, names=names) if level == len(package):
                imported = [alias.name for alias in names]
                yield from (
                    f"{name}: the facade is not for the package itself" for name in imported if name != "__version__"
                )
                continue
            case _:
                continue
        for module in modules:
            top = module.split(".")[0]
            if top == "bough":
                yield f"{module}: modules of the package import one another relatively"
            elif package[1] == "radix" and top not in sys.stdlib_module_names:
                yield f"{module}: radix imports the standard library only"


def test_modules_import_as_they_should(repository: Path) -> None:
    paths = sorted(path for folder in FOLDERS for path in (repository / folder).rglob("*.py"))
    assert len(paths) >= len(FOLDERS)
    found = [
        f"{path.relative_to(repository)} imports {violation}"
        for path in paths
        for violation in violations(path.read_text(), ("bough", *path.relative_to(repository).parent.parts))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import bough", ("bough", "server")),
        ("import bough.lang as language", ("bough", "server")),
        ("def late():\n    from bough.runtime.engine import engine", ("bough", "runtime", "client")),
        ("from ... import gen", ("bough", "lang", "backends")),
        ("import numpy", ("bough", "radix")),
    ],
)
def test_a_wrong_import_is_seen(source: str, package: tuple[str, ...]) -> None:
    assert len(list(violations(source, package))) == 1


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from ..runtime.request import Request\nfrom .errors import ProgramError", ("bough", "lang")),
        ("import heapq\nfrom .tree import RadixTree", ("bough", "radix")),
        ("import numpy as np", ("bough", "constrain")),
        ("from .. import __version__", ("bough", "cli")),
        ("from .. import errors", ("bough", "lang", "backends")),
    ],
)
def test_a_right_import_is_let_through(source: str, package: tuple[str, ...]) -> None:
    assert list(violations(source, package)) == []
