"""Costs of constraints in a long-lived process: memory under many distinct schemas, and time that the lock is held.

python -m tests.constrain.search.endurance --schemas 20000
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from bough.benchmarks.constrain.cases import SchemaCase, maskbench_cases, maskbench_folder, suite_cases, suite_folder
from bough.benchmarks.harness.report import percentile
from bough.constrain import GrammarCompiler, GrammarError, JsonSchema, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.vocabulary.token_table import TokenTable
from bough.runtime.models.load import locate
from bough.runtime.tokenizer.load import load_tokenizer

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4_096


class Memory(msgspec.Struct):
    """Resident megabytes of this process and its children: at the start, and after each tenth of the schemas."""

    num_schemas: int
    start_mb: float
    after_mb: list[float]
    seconds: float

    @property
    def growth_mb(self) -> float:
        """Over the second half, in which the cache is full."""
        return self.after_mb[-1] - self.after_mb[len(self.after_mb) // 2]


def measure_memory(vocabulary: Vocabulary, num_schemas: int, *, cache_bytes: int = 64 << 20) -> Memory:
    """Compiles distinct schemas with one compiler, a few at a time."""
    compiler = GrammarCompiler(vocabulary, cache_bytes=cache_bytes)
    try:
        compiler.compile(JsonSchema("{}"))
        memory = Memory(num_schemas, resident_mb(), [], 0.0)
        started = time.perf_counter()
        step = max(1, num_schemas // 10)
        for first in range(0, num_schemas, step):
            for begin in range(first, min(first + step, num_schemas), 16):
                futures = [compiler.submit(_distinct(number)) for number in range(begin, begin + 16)]
                for future in futures:
                    future.exception()
            gc.collect()
            memory.after_mb.append(resident_mb())
        memory.seconds = time.perf_counter() - started
        return memory
    finally:
        compiler.close()


def _distinct(number: int) -> JsonSchema:
    return JsonSchema(
        f'{{"type": "object", "properties": {{"id{number}": {{"type": "string", "pattern": "^[a-f]{{2}}-{number}$"}}, '
        f'"kind": {{"enum": ["a{number}", "b", "c"]}}, "count": {{"type": "integer", "maximum": {number}}}}}, '
        f'"required": ["id{number}", "kind"], "additionalProperties": false}}'
    )


def resident_mb() -> float:
    """Memory of this process and its children, on Linux; NaN elsewhere."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if os.getpid() in (int(stat.parent.name), int(fields[1])):
                total += int(fields[21]) * _PAGE
        except OSError:  # it has just ended
            continue
    return total / 1e6 if total else float("nan")


class Held(msgspec.Struct):
    """Times for which single calls held the interpreter's lock, in microseconds.

    calls_us    of the processor's time, so that what else runs on the machine does not count
    waits_us    how much later than it asked a second thread ran beside the walk; it also holds what the system's
                scheduler adds, which `idle_us` shows: the same beside a thread that only sleeps
    """

    calls_us: dict[str, list[float]]
    waits_us: list[float]
    idle_us: list[float]


def measure_held(cases: Sequence[SchemaCase], vocabulary: Vocabulary) -> Held:
    """Walks the cases' instances as decoding does: filled masks, tokens taken, forced tokens asked for."""
    held = Held({"accept": [], "forced": [], "copy": [], "rollback": []}, [], [])
    with _watch(held.idle_us):
        time.sleep(1.0)
    table = TokenTable(vocabulary)
    grammars = []
    for case in cases:
        try:
            grammars.append((compile_grammar(JsonSchema(case.schema), table), case))
        except GrammarError:
            continue
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    with _watch(held.waits_us):
        for grammar, case in grammars:
            for instance in case.instances[:4]:
                matcher = grammar.matcher()
                for count, token in enumerate(vocabulary.encode(instance.text)):
                    if matcher.finished:
                        break
                    matcher.fill_mask(mask)
                    if not mask[token // 32] >> (token % 32) & 1:
                        break
                    started = time.thread_time()
                    matcher.accept(token)
                    accepted = time.thread_time()
                    matcher.forced_tokens()
                    forced = time.thread_time()
                    held.calls_us["accept"].append((accepted - started) * 1e6)
                    held.calls_us["forced"].append((forced - accepted) * 1e6)
                    if count % 8 == 7:
                        _rewind(matcher, token, held)
    return held


def _rewind(matcher: object, token: int, held: Held) -> None:
    started = time.thread_time()
    other = matcher.copy()  # type: ignore[attr-defined]
    copied = time.thread_time()
    other.rollback(1)
    held.calls_us["copy"].append((copied - started) * 1e6)
    held.calls_us["rollback"].append((time.thread_time() - copied) * 1e6)


@contextmanager
def _watch(late_us: list[float]) -> Iterator[None]:
    """Notes how late a thread wakes that sleeps again and again; the lock is given up as soon as Python can."""
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            asked = time.perf_counter()
            time.sleep(50e-6)
            late_us.append((time.perf_counter() - asked) * 1e6 - 50)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constrain.search.endurance", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokens (default: %(default)s)")
    parser.add_argument("--schemas", type=int, default=20_000, help="distinct ones (default: %(default)s)")
    arguments = parser.parse_args(argv)
    tokenizer = load_tokenizer(locate(arguments.model))
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
    memory = measure_memory(vocabulary, arguments.schemas)
    print(
        f"{memory.after_mb[-1]:.0f} MB after {memory.num_schemas} schemas, {memory.growth_mb:+.0f} in the second half"
    )
    maskbench, suite = maskbench_folder(), suite_folder()
    cases = list(maskbench_cases(maskbench) if maskbench else suite_cases(suite) if suite else ())
    held = measure_held(cases, vocabulary)
    times = {**held.calls_us, "second thread late": held.waits_us, "late when idle": held.idle_us}
    for name, values in times.items():
        print(f"  {name:20} us: " + " / ".join(f"{percentile(values, percent):.0f}" for percent in (50, 99, 100)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
