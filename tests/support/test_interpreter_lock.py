"""The watch sees who holds the interpreter, and who computes without it."""

from __future__ import annotations

import sys
import time

import numpy as np

from .interpreter_lock import measure


def spin(duration_s: float) -> None:
    stop = time.thread_time() + duration_s
    while time.thread_time() < stop:
        pass


def test_a_thread_that_computes_in_python_is_seen() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    try:
        waits = measure(lambda: spin(0.2))
    finally:
        sys.setswitchinterval(before)
    assert waits.held_max > 10.0 and waits.seen_max >= waits.held_max
    assert "longest" in waits.line()


def test_a_thread_that_waits_holds_nothing() -> None:
    waits = measure(lambda: time.sleep(0.2))
    assert waits.held_max < 2.0 and waits.num_looks > 10


def test_native_code_that_lets_go_is_no_wait() -> None:
    matrix = np.ones((300, 300))

    def work() -> None:
        for _ in range(20):
            np.dot(matrix, matrix)

    assert measure(work).num_looks > 1
