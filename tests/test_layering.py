"""Which folder may import which, read from the source: nothing is imported, so a cycle cannot hide here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    {"cli"},
    {"benchmarks"},
    {"server", "lang"},
    {"runtime"},
    {"constrain", "kernels", "radix"},
)
LEVEL_OF = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
TORCH_FREE = {"constrain", "radix"}
TORCH = {"torch", "transformers", "triton"}


def imported_modules(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute names of what `source`, a module of `package`, imports; those inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{name}.{alias.name}" for alias in node.names) if name == "bough" else [name]


def violations(source: str, package: tuple[str, ...]) -> list[str]:
    """What is wrong with the imports of one module of the folder `package[1]`."""
    folder = package[1]
    found = []
    for name in imported_modules(source, package):
        top, *rest = name.split(".")
        if top in LEVEL_OF:
            found.append(f"{name}: import it as bough.{name}")
        elif folder == "radix" and top != "bough" and top not in sys.stdlib_module_names:
            found.append(f"{name}: radix imports the standard library only")
        elif folder in TORCH_FREE and top in TORCH:
            found.append(f"{name}: {folder} does not import torch")
        elif top == "bough" and rest != ["__version__"]:
            other = rest[0] if rest else ""
            if other not in LEVEL_OF:
                found.append(f"{name}: a module does not import the facade")
            elif other != folder and LEVEL_OF[other] <= LEVEL_OF[folder]:
                found.append(f"{name}: {folder} may only import what lies below it")
    return found


def modules(repository: Path) -> list[Path]:
    return sorted(path for folder in LEVEL_OF for path in (repository / folder).rglob("*.py"))


def test_imports_point_down(repository: Path) -> None:
    paths = modules(repository)
    assert len(paths) >= len(LEVEL_OF)
    found = [
        f"{path.relative_to(repository)} imports {violation}"
        for path in paths
        for violation in violations(path.read_text(), ("bough", *path.relative_to(repository).parent.parts))
    ]
    assert found == []


def test_modules_of_the_package_import_each_other_relatively(repository: Path) -> None:
    absolute = [
        str(path.relative_to(repository))
        for path in modules(repository)
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "bough")
        or (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "bough" for alias in node.names))
    ]
    assert absolute == []


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from ..runtime.request import Request", ("bough", "radix")),
        ("from ..kernels import attention", ("bough", "constrain")),
        ("from ... import server", ("bough", "lang", "backends")),
        ("from ...server.app import create_app", ("bough", "runtime", "models")),
        ("import bough", ("bough", "server")),
        ("def late():\n    from ..cli import main", ("bough", "benchmarks")),
        ("import numpy", ("bough", "radix")),
        ("import torch.nn", ("bough", "constrain")),
        ("from runtime import request", ("bough", "lang")),
    ],
)
def test_a_wrong_import_is_seen(source: str, package: tuple[str, ...]) -> None:
    assert len(violations(source, package)) == 1


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from ..runtime.request import Request\nfrom .errors import ProgramError", ("bough", "lang")),
        ("from ...kernels.attention import KVShape\nimport torch", ("bough", "runtime", "models")),
        ("import heapq\nfrom .pool import PagePool", ("bough", "radix")),
        ("import numpy as np", ("bough", "constrain")),
        ("from .. import __version__", ("bough", "cli")),
    ],
)
def test_a_right_import_is_let_through(source: str, package: tuple[str, ...]) -> None:
    assert violations(source, package) == []
