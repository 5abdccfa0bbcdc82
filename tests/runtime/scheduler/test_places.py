"""Places are shared between tenants; several are there together or not at all."""

from __future__ import annotations

import random

import pytest

from bough.runtime.protocol.errors import OverloadedError
from bough.runtime.scheduler.places import Places


def taken_one_by_one(places: Places, tenant: str, limit: int) -> int:
    """Takes up to `limit` places; returns how many there were."""
    for number in range(limit):
        try:
            places.check(tenant)
        except OverloadedError:
            return number
        places.take(tenant)
    return limit


@pytest.mark.parametrize("weight", [1, 3])
@pytest.mark.parametrize("tenant", ["", "a"])
def test_the_most_that_a_tenant_may_have_is_what_it_gets_alone(tenant: str, weight: int) -> None:
    for total in (*range(1, 200), 1000, 4096):
        places = Places(total, {"a": weight})
        assert places.most(tenant) == taken_one_by_one(places, tenant, total + 1), total
    assert Places(None).most(tenant) is None


def test_several_are_there_together_exactly_if_they_are_one_by_one() -> None:
    rng = random.Random(3)
    for _ in range(500):
        total, count = rng.randint(1, 60), rng.randint(1, 20)
        before = [rng.choice(("", "a", "b")) for _ in range(rng.randint(0, total))]
        tenant, weights = rng.choice(("", "a")), {"a": rng.randint(1, 4)}
        places, copy = Places(total, weights), Places(total, weights)
        for each in before:
            places.take(each)
            copy.take(each)
        if taken_one_by_one(copy, tenant, count) == count:
            places.check(tenant, count)
        else:
            with pytest.raises(OverloadedError):
                places.check(tenant, count)
        assert places.num_taken == len(before)
