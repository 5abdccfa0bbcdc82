"""The fuzzer finds every planted bug, whatever the seed: a check that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from bough.radix import PrefixCache

from .fuzz import ViolationError, fuzz
from .mutants import MUTANTS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_fuzzer_finds_the_planted_bug(mutant: type[PrefixCache], seed: int):
    with pytest.raises(ViolationError, match=f"seed={seed} operations="):
        fuzz(seed, 20_000, mutant)
