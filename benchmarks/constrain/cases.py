"""Schemas with instances that they accept or refuse: the official suite, and MaskBench's real schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_SHARED = _ROOT.parent / "shared" / "data"
_OWN = _ROOT / "tests" / "data"

_SET = re.compile(r"Github_[a-z]+|[A-Za-z]+(?:2K)?")


@dataclass(frozen=True)
class Instance:
    """A JSON text, and whether the schema accepts its value."""

    name: str
    text: str
    valid: bool


@dataclass(frozen=True)
class Case:
    """A schema's text and its instances. `group` is what its figures are counted under: a keyword, a set."""

    group: str
    name: str
    schema: str
    instances: tuple[Instance, ...]


def suite_folder() -> Path | None:
    """Where the official suite is: the copy beside the checkout, else the smaller one inside it."""
    places = (_SHARED / "json-schema-test-suite", _OWN / "json_schema_test_suite")
    return next((path / "draft2020-12" for path in places if path.is_dir()), None)


def maskbench_folder() -> Path | None:
    """Where schemas of MaskBench are; None if there are none."""
    path = _SHARED / "maskbench-sample"
    return path if path.is_dir() else None


def suite_cases(folder: Path, *, optional: bool = False) -> Iterator[Case]:
    """The groups of every file of the suite, in order; those in `optional/` only if asked for."""
    for path in sorted(folder.rglob("*.json") if optional else folder.glob("*.json")):
        keyword = str(path.relative_to(folder).with_suffix(""))
        for number, group in enumerate(json.loads(path.read_text())):
            yield Case(
                keyword, f"{keyword}/{number} {group['description']}", _dumps(group["schema"]), _instances(group)
            )


def maskbench_cases(folder: Path) -> Iterator[Case]:
    """A case for each file of the folder. A file's name begins with the name of its set."""
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        of_set = _SET.match(path.stem)
        group = path.stem if of_set is None else of_set[0]
        yield Case(group, path.stem, _dumps(content["schema"]), _instances(content))


def _instances(group: Any) -> tuple[Instance, ...]:
    return tuple(
        Instance(test.get("description", str(number)), _dumps(test["data"]), test["valid"])
        for number, test in enumerate(group["tests"])
    )


def _dumps(value: Any) -> str:
    """In the layout that is generated: that of `json.dumps`, characters as themselves."""
    return json.dumps(value, ensure_ascii=False)
