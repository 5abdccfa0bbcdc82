"""Sequences whose forks share what they have in common."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from bough.runtime.programs.shared import Shared


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_forks_equal_copied_lists(seed: int, compact: bool) -> None:
    rng = random.Random(seed)
    pairs = [(Shared[int](compact=compact), list[int]())]
    for step in range(2000):
        shared, model = rng.choice(pairs)
        match rng.randrange(6):
            case 0:
                pairs.append((shared.fork(), list(model)))
                del pairs[: max(len(pairs) - 20, 0)]
            case 1:
                length = rng.randrange(len(model) + 3)
                shared.cut(length)
                del model[length:]
            case 2:
                shared.append(step)
                model.append(step)
            case 3:
                items = [rng.randrange(50_000) for _ in range(rng.randrange(5))]
                shared.extend(items)
                model += items
            case 4 if model:
                start, stop = sorted(rng.choices(range(len(model) + 1), k=2))
                shared.replace(start, stop, [step] * 3)
                model[start:stop] = [step] * 3
            case _:
                low, high = rng.randrange(-5, len(model) + 3), rng.randrange(-5, len(model) + 3)
                assert shared[low:high] == model[low:high]
                assert not model or shared[-1] == model[-1]
        for each, expected in pairs:
            assert each == expected
            assert len(each) == len(expected)
    assert [list(each) for each, _ in pairs] == [expected for _, expected in pairs]


def test_what_is_not_there() -> None:
    shared = Shared([1, 2])
    for index in (2, -3):
        with pytest.raises(IndexError):
            shared[index]
    assert shared != [1, 2, 3]
    assert shared != "ab"


def test_a_thousand_forks_take_the_room_of_one() -> None:
    shared = Shared(range(100_000), compact=True)
    tracemalloc.start()
    forks = [shared.fork() for _ in range(1000)]
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    tracemalloc.stop()
    assert all(len(fork) == 100_000 for fork in forks)
