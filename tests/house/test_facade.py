"""The facade: every public name is where the table says, and `import bough` stays light."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import bough

HEAVY = ("httpx", "llguidance", "numpy", "pydantic", "starlette", "torch", "transformers", "uvicorn")


@pytest.mark.parametrize("name", bough.__all__)
def test_a_public_name_is_what_its_module_holds(name: str) -> None:
    home = importlib.import_module(bough._HOME_OF[name])
    assert getattr(bough, name) is getattr(home, name)


def test_all_is_sorted_and_listed_by_dir() -> None:
    assert bough.__all__ == sorted(set(bough.__all__))
    assert set(bough.__all__) <= set(dir(bough))


def test_each_name_has_one_home() -> None:
    assert len(bough._HOME_OF) == sum(len(names) for names in bough._HOMES.values())


def test_type_checkers_see_the_same_names(repository: Path) -> None:
    tree = ast.parse((repository / "__init__.py").read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = {
        alias.name: (node.module, alias.asname)
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == {name: (module, name) for name, module in bough._HOME_OF.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gan'"):
        bough.gan  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_package_s(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert bough.__version__ == project["version"]


def test_import_is_light_and_fast() -> None:
    program = f"import sys, bough; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []

    def seconds(statement: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", statement], check=True)
        return time.perf_counter() - start

    cost_s = min(seconds("import bough") for _ in range(5)) - min(seconds("pass") for _ in range(5))
    assert cost_s < 0.3
