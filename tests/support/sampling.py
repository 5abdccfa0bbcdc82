"""Random numbers and samplers for tests."""

from __future__ import annotations

import pytest

from bough.kernels.native.library import load_library
from bough.kernels.native.threads import Threads
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.sampler.native_sampler import NativeSampler
from bough.runtime.sampler.rows import Sampler

_WORD = (1 << 64) - 1


def host_sampler() -> Sampler:
    """Sampler of the engines on the CPU."""
    library = load_library()
    if library is not None:
        return NativeSampler(library, Threads(library, 1))
    from bough.runtime.sampler.torch_sampler import TorchSampler

    return TorchSampler()


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that the token at `position` of a request with `seed` is drawn by."""
    return (splitmix(splitmix(seed & _WORD) ^ position) >> 11) * 2.0**-53


def splitmix(x: int) -> int:
    """The step of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def seed_of(number: float) -> int:
    """A seed whose random number at position 0 is `number` of [0, 1), to 2^-53."""
    return _before(_before(int(number * 2**53) << 11))


def assert_close(one: TokenLogprob | None, other: TokenLogprob | None) -> None:
    """Asserts that two log-probabilities are of the same tokens, and equal but for rounding in float32."""
    if one is None or other is None:
        assert one is other
        return
    assert one.token == other.token and [token for token, _ in one.top] == [token for token, _ in other.top]
    assert (one.masked is None) == (other.masked is None)
    found = [one.logprob, one.masked or 0.0, *(value for _, value in one.top)]
    expected = [other.logprob, other.masked or 0.0, *(value for _, value in other.top)]
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-6)


def _before(x: int) -> int:
    """Inverts `splitmix`."""
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, 1 << 64) & _WORD
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & _WORD
    x ^= x >> 30 ^ x >> 60
    return (x - 0x9E3779B97F4A7C15) & _WORD
