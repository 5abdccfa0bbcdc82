"""Counter-based random numbers, and seeds made of seeds: of a request's samples, and of what is generated once more.

A draw depends on (seed, position) and nothing else: a request draws the same numbers alone, in any batch, after a
retraction, and on any machine. The hash is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"), as in kernels/sampling/reference.py.
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def random_bits(seed: int, position: int) -> int:
    """The random number of the token at `position` of a request with `seed`: 53 bits, u * 2^53 for a u in [0, 1)."""
    return _mix(_mix(seed & _MASK) ^ position) >> 11


def derive(seed: int, index: int) -> int:
    """The seed of the `index`-th sample of a request (n > 1), or of a request without a seed of its own."""
    return seed & _MASK if index == 0 else _mix((seed & _MASK) + index * 0xD1B54A32D192ED03)


def derive_again(seed: int, attempts: Sequence[int], turn: int) -> int:
    """The seed of a generation that is made once more, which is not to say the same again.

    `attempts` are the numbers of times that its branch, and those that it descends from, were begun anew; `turn` is how
    often a loop has made it before. The first time it is `seed` itself.
    """
    seed = derive(seed, turn << 16)
    for depth, attempt in enumerate(attempts):
        if attempt:
            seed = derive(seed, (attempt << 32) + (depth << 40))
    return seed
