"""Tests that are alone have no other beside them, and are not passed by."""

from __future__ import annotations

import threading
from pathlib import Path

from .company import Company


def test_alone_means_without_another(tmp_path: Path) -> None:
    inside, alone, seen = [0], [0], list[tuple[int, int]]()
    ended = threading.Event()

    def take(number: int) -> None:
        company = Company(tmp_path)  # locks belong to what opened the file, as those of processes do
        while not ended.is_set():
            with company.held(alone=number == 0):
                kind = alone if number == 0 else inside
                kind[0] += 1
                seen.append((inside[0], alone[0]))
                kind[0] -= 1
            if number == 0 and sum(1 for _, others in seen if others) >= 50:
                ended.set()
        company.close()

    threads = [threading.Thread(target=take, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ended.is_set()
    assert all(num_inside == 0 for num_inside, num_alone in seen if num_alone)


def test_two_share(tmp_path: Path) -> None:
    one, other = Company(tmp_path), Company(tmp_path)
    with one.held(alone=False), other.held(alone=False):
        pass
    one.close()
    other.close()
