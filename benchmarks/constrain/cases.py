"""Constraints with instances that they accept or refuse: the official suite, MaskBench's schemas, and patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_SHARED = _ROOT.parent / "shared" / "data"
_OWN = _ROOT / "tests" / "data"

_dumps = partial(json.dumps, ensure_ascii=False)  # in the layout that is generated, characters as themselves
_SET = re.compile(r"Github_[a-z]+|[A-Za-z]+(?:2K)?")


@dataclass(frozen=True)
class Instance:
    """A JSON text, and whether the schema accepts its value."""

    name: str
    text: str
    valid: bool


@dataclass(frozen=True)
class SchemaCase:
    """A schema's text and its instances. `group` is what its figures are counted under: a keyword, a set."""

    group: str
    name: str
    schema: str
    instances: tuple[Instance, ...]


def suite_folder() -> Path | None:
    """The official suite: the copy beside the checkout, else the smaller one inside it, if there is one."""
    places = (_SHARED / "json-schema-test-suite", _OWN / "json_schema_test_suite")
    return next((path / "draft2020-12" for path in places if path.is_dir()), None)


def maskbench_folder() -> Path | None:
    """Schemas of MaskBench beside the checkout, if they are there."""
    return next((path for path in (_SHARED / "maskbench-sample",) if path.is_dir()), None)


def suite_cases(folder: Path | None, *, optional: bool = False) -> Iterator[SchemaCase]:
    """The groups of every file of the suite, if there is one, in order; those in `optional/` only if asked for."""
    for path in sorted(folder.glob("**/*.json" if optional else "*.json")) if folder else ():
        keyword = path.relative_to(folder or path).with_suffix("").as_posix()
        for number, group in enumerate(json.loads(path.read_text())):
            name = f"{keyword}/{number} {group['description']}"
            yield SchemaCase(keyword, name, _dumps(group["schema"]), _instances(group))


def maskbench_cases(folder: Path | None) -> Iterator[SchemaCase]:
    """A case for each file of the folder, if there is one. A file's name begins with the name of its set."""
    for path in sorted(folder.glob("*.json")) if folder else ():
        content = json.loads(path.read_text())
        of_set = _SET.match(path.stem)
        yield SchemaCase(of_set[0] if of_set else path.stem, path.stem, _dumps(content["schema"]), _instances(content))


def _instances(group: Any) -> tuple[Instance, ...]:
    tests = enumerate(group["tests"])
    return tuple(Instance(test.get("description", str(n)), _dumps(test["data"]), test["valid"]) for n, test in tests)


# -- Regular constraints -----------------------------------------------------------------------------------------------

REPEATS = 5  # a server meets a pattern many times: most of its states have been visited before


def patterns() -> dict[str, dict[str, Any]]:
    """Patterns that people ask for by name: each with `matches`, texts that match, and `others`, which do not."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("patterns.json").read_text())
    return found


def regular_cases() -> list[SchemaCase]:
    """A case for each pattern. Its schema is the pattern."""
    return [_regular(name, entry["pattern"], entry["matches"], entry["others"]) for name, entry in patterns().items()]


def choices(count: int) -> SchemaCase:
    """A case of `count` words to choose from, all of which begin like others."""
    countries = patterns()["country"]["pattern"].split("|")
    words = [f"{country} {number}" for number in range(count // len(countries) + 1) for country in countries][:count]
    return _regular(f"{count} choices", "|".join(words), words[:: max(1, count // 8)])


def _regular(name: str, pattern: str, matches: list[str], others: Sequence[str] = ()) -> SchemaCase:
    instances = [Instance(text, text, valid) for texts, valid in ((matches, True), (others, False)) for text in texts]
    return SchemaCase("regular", name, pattern, tuple(instances) * REPEATS)
