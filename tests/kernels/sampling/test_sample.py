"""The sampling kernels against brute force: small blocks and tiles, so that there are several of each."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ...support.triton_interpreter import DEVICE, HAS_GPU  # isort: skip

import triton
import triton.language as tl

from bough.kernels.sampling.logits import scaled_floor, uniform_bits
from bough.kernels.sampling.reference import NONE_ALLOWED, NOT_FINITE, SampleRows, SampleTables
from bough.kernels.sampling.reference import sample_rows as plain_sample_rows
from bough.kernels.sampling.sample import SampleWorkspace, sample_rows

from ...support.sampling import uniform
from .brute_sampler import Draw, adjusted, chi_square, distribution, right_tokens, tensors

VOCAB = 300  # the last block and the last mask word are partly used


def logits_of(seed: int, rows: int, size: int = VOCAB) -> torch.Tensor:
    return (torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3).to(DEVICE)


def workspace_of(rows: int, size: int, lines: int = 2, tile: int = 64) -> SampleWorkspace:
    """Poisoned: whatever is read before it is written shows."""
    workspace = SampleWorkspace.create(rows, size, DEVICE, lines=lines, tile=tile)
    for name in workspace.__slots__:
        memory = getattr(workspace, name)
        if isinstance(memory, torch.Tensor):
            memory.fill_(torch.nan if memory.is_floating_point() else 1_111_111_111)
    return workspace


def tokens_of(
    logits: torch.Tensor, draws: list[Draw], *, lines: int = 2, tile: int = 64, spare: int = 0, filters: bool = True
) -> list[int]:
    """`spare`: rows of the workspace that the batch does not use."""
    rows, tables = tensors(draws, logits.shape[1], DEVICE)
    out = torch.full((len(draws),), -9, device=DEVICE)
    workspace = workspace_of(len(draws) + spare, logits.shape[1], lines, tile)
    before = logits.clone()
    sample_rows(logits, rows, tables, workspace, out, filters=filters)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    return out.tolist()


def check(logits: torch.Tensor, draws: list[Draw], lines: int = 2, tile: int = 64) -> None:
    tokens = tokens_of(logits, draws, lines=lines, tile=tile)
    for token, row, draw in zip(tokens, logits, draws, strict=True):
        assert token in right_tokens(row, draw), draw


@triton.jit
def random_kernel(seeds, positions, totals, bits, floors):
    i = tl.program_id(0)
    number = uniform_bits(tl.load(seeds + i), tl.load(positions + i))
    tl.store(bits + i, number.to(tl.int64, bitcast=True))
    tl.store(floors + i, scaled_floor(number, tl.load(totals + i)))


def test_random_numbers_are_those_of_the_runtime() -> None:
    rng = random.Random(3)
    seeds = [0, 1, 2**63, 2**64 - 1, *(rng.getrandbits(64) for _ in range(100))]
    positions = [rng.getrandbits(rng.randint(1, 63)) for _ in seeds]
    totals = [1, 2, 2**62, *(rng.getrandbits(rng.randint(1, 62)) | 1 for _ in seeds[3:])]
    inputs = [torch.tensor([x - 2**64 if x >= 2**63 else x for x in values], device=DEVICE)
              for values in (seeds, positions, totals)]  # fmt: skip
    bits, floors = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    random_kernel[(len(seeds),)](*inputs, bits, floors)
    for row, (seed, position, total) in enumerate(zip(seeds, positions, totals, strict=True)):
        number = uniform(seed, position)
        assert int(bits[row]) % 2**64 == int(number * 2**64)
        assert int(floors[row]) == int(number * 2**53) * total >> 53


OPTIONS: dict[str, Draw] = {
    "greedy": Draw(temperature=0.0),
    "greedy with filters": Draw(temperature=0.0, top_k=3, top_p=0.1),
    "plain": Draw(),
    "coldest": Draw(temperature=1e-35),
    "cold": Draw(temperature=1e-4, top_p=0.9),
    "hottest": Draw(temperature=1e30),
    "hottest filtered": Draw(temperature=1e30, top_k=100, top_p=0.5),
    "top_k": Draw(top_k=7),
    "top_k 1": Draw(top_k=1),
    "top_k V": Draw(top_k=VOCAB),
    "top_k V - 1": Draw(top_k=VOCAB - 1, temperature=9.0),
    "top_k -1": Draw(top_k=-1),
    "top_p": Draw(top_p=0.6, temperature=2.0),
    "top_p 0": Draw(top_p=0.0),
    "top_p tiny": Draw(top_p=1e-30),
    "top_p almost 1": Draw(top_p=1 - 2.0**-24, temperature=4.0),
    "min_p": Draw(min_p=0.02, temperature=2.0),
    "min_p 1": Draw(min_p=1.0),
    "min_p tiny": Draw(min_p=1e-30),
    "top_k and top_p": Draw(top_k=30, top_p=0.8, temperature=3.0),
    "top_k and min_p": Draw(top_k=30, min_p=0.1, temperature=3.0),
    "top_p and min_p": Draw(top_p=0.97, min_p=0.02, temperature=2.0),
    "all": Draw(top_k=40, top_p=0.95, min_p=0.01, temperature=2.0),
}
EXTRAS: dict[str, Draw] = {
    "penalties": Draw(repetition=1.4, frequency=0.5, presence=-1.0, counts={0: 3, 7: 1, 299: 300}, prompt=(7, 9, 64)),
    "mask": Draw(allowed=tuple(i for i in range(VOCAB) if i % 3)),
    "bias": Draw(bias={0: -np.inf, 64: 6.0, 65: -2.0, 127: 5.0, 299: 7.0}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_option(dtype: torch.dtype) -> None:
    """bfloat16 has ties. A vocabulary of whole mask words has code of its own."""
    draws = [replace(draw, seed=row, position=row) for row, draw in enumerate(OPTIONS.values())]
    logits = logits_of(1, len(draws), 320 if dtype == torch.float32 else VOCAB)
    check(logits.to(dtype), draws, tile=64 if dtype == torch.bfloat16 else 512)


def merged(draw: Draw, extra: Draw) -> Draw:
    changed = {name: value for name, value in vars(extra).items() if value != vars(Draw())[name]}
    return replace(draw, **changed)


def test_each_option_with_penalties_mask_and_bias() -> None:
    draws = []
    for row, name in enumerate(OPTIONS):
        extras = list(EXTRAS.values())
        if row % 4 < 3:  # one of them, or all
            extras = [extras[row % 4]]
        draw = replace(OPTIONS[name], seed=2**64 - 1 - row, position=2**40 + row)
        for extra in extras:
            draw = merged(draw, extra)
        draws.append(draw)
    check(logits_of(2, len(draws)), draws)


@settings(max_examples=200 if HAS_GPU else 12, deadline=None, derandomize=not HAS_GPU)
@given(
    seed=st.integers(0, 2**31),
    coarse=st.booleans(),
    temperature=st.sampled_from([0.3, 1.0, 3.0, 30.0]),
    top_k=st.integers(0, 110),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
    counts=st.one_of(st.none(), st.dictionaries(st.integers(0, 99), st.integers(0, 9), max_size=9)),
    allowed=st.one_of(st.none(), st.lists(st.integers(0, 99), unique=True).map(tuple)),
    bias=st.dictionaries(st.integers(0, 99), st.sampled_from([-np.inf, -3.0, 1.0, 5.0]), max_size=6),
)
def test_any_row_against_brute_force(
    seed: int,
    coarse: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    counts: dict[int, int] | None,
    allowed: tuple[int, ...] | None,
    bias: dict[int, float],
) -> None:
    logits = logits_of(seed, 2, 100)
    logits = logits.round() if coarse else logits
    first = Draw(temperature, top_k, top_p, min_p, seed, seed, 1.2, 0.5, 0.1, counts, (1, 2), allowed, bias)
    check(logits, [first, replace(first, seed=seed + 1)], lines=1, tile=32)


def test_ties_are_cut_by_token_id() -> None:
    """All logits are one of three values; exactly the first tokens of the middle one are kept, in whatever tile."""
    logits = torch.full((8, VOCAB), -4.0, device=DEVICE)
    middle, best = list(range(40, 240, 2)), [200, 201, 202]
    logits[:, middle] = 1.0
    logits[:, best] = 2.0
    draws = [
        Draw(temperature=50.0, top_k=top_k, top_p=1.0 if top_k else 0.1, seed=row)
        for row, top_k in enumerate((4, 20, 50, 0) * 2)
    ]
    for token, row, draw in zip(tokens_of(logits, draws), logits, draws, strict=True):
        kept = [*best, *(token for token in middle if token not in best)]
        assert draw.top_k == 0 or token in kept[: draw.top_k]
        assert token in right_tokens(row, draw)
    assert tokens_of(logits[:2] * 0.0, [Draw(temperature=0.0), Draw(top_k=1)]) == [0, 0]


@pytest.mark.parametrize("zeros", [(-0.0, 0.0, -0.0, 0.0), (-0.0, -0.0, -0.0, -0.0)])
def test_zeros_of_both_signs_are_equal(zeros: tuple[float, ...]) -> None:
    logits = torch.full((6, VOCAB), -1.0, device=DEVICE)
    logits[:, 5:9] = torch.tensor(zeros)
    draws = [Draw(top_k=2, top_p=top_p, seed=seed) for seed, top_p in enumerate((1.0, 1.0, 1.0, 0.9, 0.4))]
    tokens = tokens_of(logits, [*draws, Draw(temperature=0.0)])
    assert set(tokens[:4]) == {5, 6} and tokens[4:] == [5, 5]


def test_top_p_takes_its_part_of_what_min_p_then_removes() -> None:
    """Weights 1, 0.6, 0.6 and 100 of 0.018: 0.3 of all is over 1, and 0.3 of those that min-p keeps is not."""
    logits = torch.full((4, VOCAB), -9.0, device=DEVICE)
    logits[:, 100:200] = -2.0
    logits[:, 10], logits[:, 20], logits[:, 30] = 2.0, 1.5, 1.5
    draws = [Draw(top_k=150, top_p=0.3, min_p=0.5, seed=seed) for seed in range(4)]
    assert [uniform(seed, 0) < 1 / 1.6 for seed in range(4)] == [False, True, True, False]
    assert tokens_of(logits, draws) == [20, 10, 10, 20]


@pytest.mark.parametrize("filters", [True, False])
def test_what_cannot_be_drawn(filters: bool) -> None:
    """Every kind of row, on logits that are not finite, and under a mask that allows one token or none."""
    kinds = [Draw(temperature=0.0), Draw()] + ([Draw(top_k=5), Draw(top_p=0.5)] if filters else [])
    logits = logits_of(4, 4 * len(kinds))
    draws = []
    for row, kind in enumerate(kinds):
        logits[4 * row, 299] = torch.nan
        logits[4 * row + 1, 0] = torch.inf if row % 2 else -torch.inf
        for allowed in (None, None, (), (299,)):
            draws.append(replace(kind, allowed=allowed, counts={}))
    rows, tables = tensors(draws, VOCAB, DEVICE)
    out = torch.full((len(draws),), -9, device=DEVICE)
    sample_rows(logits, rows, tables, workspace_of(len(draws), VOCAB), out, filters=filters)
    assert out.tolist() == [NOT_FINITE, NOT_FINITE, NONE_ALLOWED, 299] * len(kinds)
    assert tables.counts is not None and int(tables.counts.sum()) == len(kinds)
    assert tables.last_token is not None
    assert sorted(tables.last_token.tolist()) == [-5] * (3 * len(kinds) + 1) + [299] * len(kinds)


def test_a_penalty_that_overflows_is_not_finite() -> None:
    logits = torch.full((2, VOCAB), 1.0, device=DEVICE)
    logits[:, 7] = 3e38
    draws = [Draw(temperature, repetition=0.01, counts={7: 1}) for temperature in (0.0, 1.0)]
    assert tokens_of(logits, draws) == [NOT_FINITE, NOT_FINITE]


def test_a_row_does_not_know_its_mates() -> None:
    """To the bit: the token of a row alone, in a batch of others, and from a workspace of another size."""
    draws = [merged(OPTIONS[name], EXTRAS[extra]) for name in ("plain", "top_p", "all") for extra in EXTRAS]
    draws = [replace(draw, seed=row) for row, draw in enumerate(draws)]
    logits = logits_of(8, len(draws)).bfloat16()
    together = tokens_of(logits, draws, spare=5)
    backwards = tokens_of(logits.flip(0), draws[::-1])
    alone = [tokens_of(logits[row : row + 1], [draws[row]])[0] for row in range(0, len(draws), 2)]
    assert together == backwards[::-1]
    assert together[::2] == alone


def test_counts_and_last_tokens() -> None:
    """Counted up to the limit, the prompt's bit kept; padding is neither read nor written."""
    logits = torch.zeros(10, VOCAB, device=DEVICE)
    logits[:, 8] = 50.0
    kinds = [Draw(temperature=0.0), Draw(top_p=0.9)]
    cases = [(times, prompt) for times in (1, 32767) for prompt in ((), (8,))]
    draws = [replace(kind, counts={8: times}, prompt=prompt) for kind in kinds for times, prompt in cases]
    draws += [Draw(temperature=-1.0, counts={}), Draw(temperature=-1.0, top_k=3)]
    logits[8:] = torch.nan
    results = []
    for implementation in ("triton", "plain"):
        rows, tables = tensors(draws, VOCAB, DEVICE)
        out = torch.full((10,), -9, device=DEVICE)
        if implementation == "plain":
            plain_sample_rows(logits, rows, tables, out)
        else:
            sample_rows(logits, rows, tables, workspace_of(10, VOCAB), out)
        assert tables.counts is not None and tables.last_token is not None
        assert out.tolist() == [8] * 8 + [-9, -9]
        assert [int(tables.counts[10 - row, 8]) for row in range(9)] == [2, 2 - 2**15, 32767, -1] * 2 + [0]
        assert int((tables.counts != 0).sum()) == 8
        results.append(tables.last_token.tolist())
    assert results[0] == results[1] == [-5, -5, -5, *[8] * 8]


def test_rows_need_no_tables() -> None:
    logits = logits_of(6, 3)
    out = torch.full((3,), -9, device=DEVICE)
    sample_rows(logits, SampleRows.greedy(3, DEVICE), SampleTables(), workspace_of(3, VOCAB), out, filters=False)
    assert out.tolist() == logits.argmax(1).tolist()


def test_logits_with_a_row_stride() -> None:
    logits = logits_of(7, 3, 2 * VOCAB)[:, :VOCAB]
    check(logits, [Draw(temperature=0.0), Draw(seed=1), Draw(top_k=20, seed=2)])


def test_real_blocks() -> None:
    """A larger vocabulary, the blocks of the real one: long lists, a flat nucleus, and a peaked row."""
    logits = logits_of(9, 5, 32_003)
    draws = [
        Draw(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
        Draw(temperature=3.0, top_p=0.95, allowed=tuple(range(0, 32_003, 2))),
        Draw(temperature=3.0, top_k=20_000, top_p=0.9),
        Draw(temperature=0.2, min_p=0.3),
        Draw(),
    ]
    draws = [replace(draw, seed=row + 5) for row, draw in enumerate(draws)]
    check(logits, draws, lines=128, tile=2048)


CASES = {
    "plain": Draw(temperature=0.8),
    "top_k": Draw(top_k=5),
    "top_p": Draw(top_p=0.7),
    "min_p": Draw(min_p=0.3),
    "all": Draw(top_k=8, top_p=0.9, min_p=0.1),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution(case: str) -> None:
    """Few draws under the interpreter; there the exact comparisons above carry the weight."""
    count = 20_000 if HAS_GPU else 30
    logits = logits_of(11, 1, 64) / 2
    draws = [replace(CASES[case], seed=7, position=position) for position in range(count)]
    tokens = tokens_of(logits.expand(count, -1), draws, tile=64)
    assert chi_square(tokens, distribution(adjusted(logits[0], draws[0]), draws[0]))


@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
def test_in_a_graph() -> None:
    """Captured once, replayed on other logits and other options."""
    logits, draws = logits_of(12, 6, 151_936), [Draw(seed=row) for row in range(6)]
    rows, tables = tensors(draws, 151_936, DEVICE)
    workspace = workspace_of(6, 151_936, 128, 2048)
    out = torch.full((6,), -9, device=DEVICE)
    sample_rows(logits, rows, tables, workspace, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample_rows(logits, rows, tables, workspace, out)
    logits.copy_(logits_of(13, 6, 151_936))
    draws = [replace(draw, top_k=30 * row, top_p=0.9, temperature=row / 2) for row, draw in enumerate(draws)]
    fresh, _ = tensors(draws, 151_936, DEVICE)
    for name in fresh.__slots__:
        getattr(rows, name).copy_(getattr(fresh, name))
    graph.replay()
    for token, row, draw in zip(out.tolist(), logits, draws, strict=True):
        assert token in right_tokens(row, draw)
