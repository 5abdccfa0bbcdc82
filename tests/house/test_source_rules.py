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


SCRIPTS = ["tests/acceptance/faults/faulty_server.py", "tests/acceptance/load/paced_server.py"]
"""Files below tests/ that are run by their path, with the root on Python's path, and import other tests."""

SHIPPED = ("cli", "constrain", "kernels", "lang", "radix", "runtime", "server")
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
TELL_THE_DATE = {
    "lang/backends/apis/http_client.py": "`retry-after` may be a date",
    "lang/observe/spans.py": "spans are placed in time",
    "runtime/tokenizer/chat_template.py": "templates write today's date",
    "server/http/access.py": "keys expire on a day",
    "server/http/gate.py": "lines of the log have the time",
    "server/responses/reply.py": "responses say when they were created and completed",
    "server/service.py": "answers say when they were created",
}
"""Files that read the clock on the wall, which may jump; all else measures time, by the monotonic one."""


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


def imports_tests(source: str) -> bool:
    """Tells whether a file imports from tests from the root, which must then be on Python's path."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name.split(".")[0] == "tests" for name in names):
            return True
    return False


def test_tests_import_each_other_relatively(repository: Path) -> None:
    """So that those of any folder can be run alone; what is run as a script has no package to start from."""
    paths = sorted((repository / "tests").rglob("*.py"))
    assert [str(p.relative_to(repository)) for p in paths if imports_tests(p.read_text())] == SCRIPTS


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("from tests.support import fakes", True),
        ("import tests.support.fakes", True),
        ("from tests import support", True),
        ("from ..support import fakes", False),
        ("from .tests import support", False),
        ("import testsuite", False),
    ],
)
def test_an_import_from_the_root_is_seen(source: str, seen: bool) -> None:
    assert imports_tests(source) is seen


def wall_clocks(source: str) -> set[str]:
    """The calls in `source` that read the clock on the wall."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found |= {name for name in WALL_CLOCK if f".{ast.unparse(node)}".endswith(f".{name}")}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{alias.name}" for alias in node.names} & WALL_CLOCK
    return found


def test_time_is_measured_by_a_clock_that_does_not_jump(repository: Path) -> None:
    paths = [path for folder in SHIPPED for path in (repository / folder).rglob("*.py")]
    found = {str(path.relative_to(repository)) for path in paths if wall_clocks(path.read_text())}
    assert found == set(TELL_THE_DATE)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import time\nend = time.time() + 5", True),
        ("from time import time", True),
        ("import datetime\ndatetime.datetime.now()", True),
        ("import time\ntime.monotonic()", False),
        ("clock.time_s", False),
    ],
)
def test_the_clock_on_the_wall_is_seen(source: str, seen: bool) -> None:
    assert bool(wall_clocks(source)) is seen


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
