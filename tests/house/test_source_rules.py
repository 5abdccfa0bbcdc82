"""Rules for every source file, checked on its syntax tree: a docstring first, and nothing that runs foreign data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = (
    "benchmarks",
    "cli",
    "constrain",
    "examples",
    "kernels",
    "lang",
    "radix",
    "runtime",
    "scripts",
    "server",
    "tests",
)
FORBIDDEN_CALLS = {"eval", "exec"}
FORBIDDEN_FUNCTIONS = {"torch.load", "torch.hub.load", "os.system"}
FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
FORBIDDEN_ARGUMENTS = {"allow_pickle", "shell", "trust_remote_code"}


def breaches(source: str) -> Iterator[str]:
    """Yields the places in `source` that break a rule, as `line: what`."""
    tree = ast.parse(source)
    if not (ast.get_docstring(tree) or "").strip():
        yield "1: the file does not begin with a docstring that says its job"
    for node in ast.walk(tree):
        for what in _breaches_of(node):
            yield f"{getattr(node, 'lineno', 0)}: {what}"


def _breaches_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Global(names=names):
            yield f"global {', '.join(names)}"
        case ast.Import(names=names):
            yield from (f"import {alias.name}" for alias in names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
        case ast.ImportFrom(module=module, names=names) if module:
            if module.split(".")[0] in FORBIDDEN_MODULES:
                yield f"from {module} import"
            yield from (f"{module}.{a.name}" for a in names if f"{module}.{a.name}" in FORBIDDEN_FUNCTIONS)
        case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
            yield f"{name}()"
        case ast.Attribute() if ast.unparse(node) in FORBIDDEN_FUNCTIONS:
            yield ast.unparse(node)
        case ast.keyword(arg=name, value=value) if name in FORBIDDEN_ARGUMENTS:
            if not (isinstance(value, ast.Constant) and value.value is False):
                yield f"{name}={ast.unparse(value)}"


def test_every_source_file_keeps_the_rules(repository: Path) -> None:
    paths = [repository / "__init__.py", *(p for folder in FOLDERS for p in (repository / folder).rglob("*.py"))]
    found = [f"{p.relative_to(repository)}:{breach}" for p in sorted(paths) for breach in breaches(p.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "eval(text)",
        "exec('x = 1')",
        "import torch\ntorch.load('weights.pt')",
        "from torch import load",
        "load = torch.load",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "np.load(path, allow_pickle=flag)",
        "subprocess.run(command, shell=True)",
        "def f():\n    global count\n    count = 1",
    ],
)
def test_a_breach_is_seen(statement: str) -> None:
    assert len(list(breaches(f'"""One job."""\n{statement}\n'))) == 1


@pytest.mark.parametrize("source", ["x = 1\n", '""" """\nx = 1\n'])
def test_a_file_without_docstring_is_seen(source: str) -> None:
    assert len(list(breaches(source))) == 1


@pytest.mark.parametrize(
    "statement", ["model.eval()", "load(path, trust_remote_code=False)", "safetensors.torch.load_file(path)"]
)
def test_what_only_looks_alike_is_let_through(statement: str) -> None:
    assert list(breaches(f'"""One job."""\n{statement}\n')) == []
