"""Counter-based random numbers: a draw depends on (seed, position) and nothing else.

The generator is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") used as a hash,
so that a request draws the same numbers alone, in any batch, after a preemption, and on any machine.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the token at `position` of a request with `seed`."""
    return (_mix(_mix(seed & _MASK) ^ position) >> 11) * 2.0**-53


def derive(seed: int, index: int) -> int:
    """The seed of the `index`-th sample of a request (n > 1), or of a request without a seed of its own."""
    return seed & _MASK if index == 0 else _mix((seed & _MASK) + index * 0xD1B54A32D192ED03)
