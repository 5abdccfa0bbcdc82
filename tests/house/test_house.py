"""scripts/house.py: what it calls a crowded folder, a circle, a fragment is one, and the package has none of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script(repository: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("house_script", repository / "scripts" / "house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


House = Callable[..., Any]


@pytest.fixture
def house(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A house in which nothing is wrong, but for the files that are given as `path: source`."""

    monkeypatch.setattr(script, "ALONE", {})

    def build(changes: dict[str, str] | None = None) -> Any:
        files = {
            "lang/__init__.py": "",
            "lang/api.py": "from .state.state import State",
            "lang/run.py": "from .state.state import State\nfrom .api import gen",
            "lang/control.py": "from .api import gen",
            "lang/state/__init__.py": "",
            "lang/state/state.py": "from ..errors import ProgramError\n",
            "lang/errors.py": "",
            "runtime/__init__.py": "",
            "runtime/engine/__init__.py": "",
            "runtime/engine/engine.py": "",
            "tests/lang/test_run.py": "",
            "tests/lang/test_control.py": "",
            "tests/lang/test_errors.py": "",
            "tests/data/suite/a.json": "{}",
            **(changes or {}),
        }
        for path, source in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(source)
        return script.House.at(tmp_path)

    return build


def broken(house: Any, script: ModuleType) -> bool:
    return script.report_rules(house, strict=True)


def test_a_house_in_order_passes(house: House, script: ModuleType) -> None:
    assert not broken(house(), script)


# Entries


def test_a_seventeenth_entry_is_seen(house: House, script: ModuleType) -> None:
    sixteen = {f"lang/state/tests_{i}.txt": "" for i in range(15)}
    assert house(sixteen).entries()["lang/state"] == 16
    assert not broken(house(sixteen), script)
    assert broken(house({**sixteen, "lang/state/deeper/one.txt": ""}), script)


@pytest.mark.parametrize(("folder", "is_seen"), [("tests/lang", True), ("tests/data/suite", False)])
def test_folders_of_tests_count_and_those_of_data_do_not(
    house: House, script: ModuleType, folder: str, is_seen: bool
) -> None:
    assert broken(house({f"{folder}/test_{i}.py": "" for i in range(17)}), script) is is_seen


# Circles


CIRCLES: list[tuple[dict[str, str], list[str]]] = [
    ({"lang/errors.py": "from .state.state import State"}, ["lang/errors.py", "lang/state"]),
    ({"lang/errors.py": "def late():\n    from .state import state"}, ["lang/errors.py", "lang/state"]),
    (
        {
            "lang/errors.py": "from ..runtime.engine import engine",
            "runtime/engine/engine.py": "from ...lang import errors",
        },
        ["lang", "runtime"],
    ),
    (
        {
            "lang/state/state.py": "from .a import A",
            "lang/state/a.py": "from .b import B",
            "lang/state/b.py": "from . import state",
        },
        ["lang/state/a.py", "lang/state/b.py", "lang/state/state.py"],
    ),
]


@pytest.mark.parametrize(("changes", "circle"), CIRCLES)
def test_a_circle_is_seen_at_every_depth(
    house: House, script: ModuleType, changes: dict[str, str], circle: list[str]
) -> None:
    found = house(changes)
    assert circle in found.cycles()
    assert broken(found, script)


def test_folders_without_a_circle_of_files_are_a_circle_of_folders(house: House) -> None:
    files = {
        "lang/state/late.py": "from ..tools.tool import Tool",
        "lang/tools/tool.py": "",
        "lang/tools/use.py": "from ..state import state",
    }
    assert house(files).cycles() == [["lang/state", "lang/tools"]]


# Fragments


def test_a_fragment_is_seen(house: House, script: ModuleType) -> None:
    cut_off = {"lang/run.py": "from .api import gen\nfrom .piece import rest", "lang/piece.py": "rest = 1"}
    assert house(cut_off).fragments() == ["lang/piece.py"]
    assert broken(house(), script)


@pytest.mark.parametrize(
    "reason",
    [
        {"lang/control.py": "from .api import gen\nfrom .piece import rest"},
        {"tests/lang/test_piece.py": ""},
        {"examples/demo.py": "from bough.lang.piece import rest"},
    ],
)
def test_what_two_import_or_a_test_knows_is_none(house: House, reason: dict[str, str]) -> None:
    cut_off = {"lang/run.py": "from .api import gen\nfrom .piece import rest", "lang/piece.py": "rest = 1"}
    assert house({**cut_off, **reason}).fragments() == []


def test_the_test_of_another_folder_s_module_does_not_count(house: House) -> None:
    assert house({"lang/piece.py": "", "tests/runtime/test_piece.py": ""}).fragments() == ["lang/piece.py"]


def test_a_reason_lets_a_fragment_stand_and_is_no_reason_for_anything_else(
    house: House, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ALONE", {"lang/piece.py": "why"})
    assert not broken(house({"lang/piece.py": ""}), script)
    assert broken(house({"tests/lang/test_piece.py": ""}), script)


# What is listed


def test_long_files_large_classes_and_shared_names_are_listed(house: House) -> None:
    attributes = "".join(f"        self.a{i} = {i}\n" for i in range(16))
    fields = "".join(f"    a{i}: int\n" for i in range(16))
    changed = house({
        "lang/errors.py": "x = 1\n" * 701,
        "lang/api.py": f"class Run:\n    def __init__(self):\n{attributes}",
        "lang/run.py": f"class Run:\n    pass\nclass Value(msgspec.Struct):\n{fields}",
        "runtime/engine/engine.py": "class Run:\n    pass",
    })  # fmt: skip
    assert changed.long_files() == [(701, "lang/errors.py")]
    assert changed.large_classes() == [(16, "lang/api.py:1 Run")]
    assert changed.shared_names() == {"lang.Run": ["lang/api.py", "lang/run.py"]}


# The package


def test_no_circles_and_no_crowded_folders(script: ModuleType, repository: Path) -> None:
    house = script.House.at(repository)
    assert len(house.modules) > 100
    assert not script.report_rules(house, strict=False)


# Docstrings


@pytest.mark.parametrize(
    ("docstring", "is_riddle"),
    [
        ("Returns the pages on the path.", False),
        ("Whatever comes.", False),
        ("Whether a page is free.", True),
        ("\\n    Who listens.", True),
        ("Of all of them.", True),
    ],
)
@pytest.mark.parametrize("place", ["lang/errors.py", "tests/lang/test_errors.py"])
def test_docstrings_that_begin_like_questions(
    house: House, script: ModuleType, docstring: str, is_riddle: bool, place: str
) -> None:
    found = house({place: f'class A:\n    def b(self):\n        """{docstring}"""\n'})
    assert [riddle.split(" ")[0] for riddle in found.riddles()] == [f"{place}:3"] * is_riddle
    assert broken(found, script) == is_riddle
