"""The library with sanitizers: no access out of bounds, no undefined behaviour, no race, whatever the numbers are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ...support import sanitized

PRODUCTS = "tests/kernels/native/test_weights.py"
PACKED = "tests/kernels/native/test_packed.py"
PASSES = "tests/runtime/runner/test_native_runner.py"
FAULTS = "tests/runtime/runner/test_native_faults.py"
DRAWS = "tests/runtime/sampler/test_native_sampler.py"

SOME_PASSES = "change_nothing and (0-1- or 1-16-int8-8 or 3-1-w8a8) or no_logits"
SOME_FAULTS = "weight_is or follows or extreme or integers or 3-0 or 90-80"
ALL_OF = "test_weights or test_packed or test_native_sampler"

Run = tuple[sanitized.Kind, list[str]]
"""A sanitizer, and arguments of Python."""

CHOSEN: dict[sanitized.Kind, list[str]] = {
    "address": [
        *(PRODUCTS, PACKED, DRAWS, PASSES, FAULTS, "-k"),
        f"{ALL_OF} or test_native_runner and ({SOME_PASSES}) or test_native_faults and ({SOME_FAULTS})",
    ],
    "thread": [PRODUCTS, FAULTS, "-k", "company or see_it_change and 3-0"],
}
"""Arguments of pytest, one process for each: most of its time goes by before the first test."""

REQUESTS: tuple[sanitized.Kind, ...] = ("address", "thread")

NUM_AT_ONCE = 2


class Runs:
    """Processes with sanitizers, some at a time: the next ones run while a test waits for its own."""

    def __init__(self, repository: Path, runs: dict[str, Run]) -> None:
        self._repository = repository
        self._pool = ThreadPoolExecutor(NUM_AT_ONCE)
        list(self._pool.map(sanitized.build, {kind for kind, _ in runs.values()}))  # once, not where it is needed
        self._outputs = {name: self._pool.submit(self._run, run) for name, run in runs.items()}

    def output(self, name: str) -> str:
        """Returns what a run has printed. Raises AssertionError: something was found."""
        return self._outputs[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, run: Run) -> str:
        kind, arguments = run
        environment = sanitized.environment(kind)
        if "pytest" not in arguments:  # with that path pytest would take this checkout for one more distribution
            environment |= {"PYTHONPATH": str(self._repository)}
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(
            command, cwd=self._repository, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[:4000]}"
        return done.stdout


@pytest.fixture(scope="module")
def runs(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    wanted: dict[str, Run] = {}
    for kind, chosen in CHOSEN.items():
        wanted[f"tests {kind}"] = kind, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    for kind in REQUESTS:
        folder = str(tmp_path_factory.mktemp("requests"))
        wanted[f"requests {kind}"] = kind, ["-m", "tests.kernels.native.sanitized_requests", folder]
    made = Runs(repository, {name: run for name, run in wanted.items() if sanitized.missing(run[0]) is None})
    yield made
    made.close()


def skip_without(kind: sanitized.Kind) -> None:
    if (why := sanitized.missing(kind)) is not None:
        pytest.skip(why)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", CHOSEN)
def test_nothing_is_found_in_tests_of_the_library(kind: sanitized.Kind, runs: Runs) -> None:
    skip_without(kind)
    output = runs.output(f"tests {kind}")
    assert " passed" in output and "failed" not in output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", REQUESTS)
def test_nothing_is_found_in_a_hundred_requests(kind: sanitized.Kind, runs: Runs) -> None:
    """And again where a norm is infinite: each of these ends alone, and nothing else does."""
    skip_without(kind)
    assert runs.output(f"requests {kind}").splitlines() == ["well", "nonfinite_logits"] * 4
