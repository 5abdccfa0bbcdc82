"""Decode attention against float64: ragged contexts, every head size and option, splits, bits that must not change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ...support.triton_interpreter import DEVICE

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.attention.decode import DecodeSplits
from bough.kernels.attention.plan.work_list import KV_START
from bough.kernels.attention.reference import ragged_attention

NAN = float("nan")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Bound of the error's norm, relative to the norm of the result."""


@dataclass
class Case:
    """Sequences on random pages of a poisoned cache. `contexts` of 0 are unused rows."""

    contexts: list[int]
    page_size: int = 16
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    fixed_split: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        chance = torch.Generator().manual_seed(self.seed)
        num_heads, num_kv_heads = self.heads
        needed = [-(-context // self.page_size) for context in self.contexts]
        ids = torch.randperm(sum(needed) + 5, generator=chance).int() + 1  # page 0 is never given out
        size = ((len(ids) + 1) * self.page_size, num_kv_heads, self.head_dim)
        cache_dtype = self.cache_dtype or self.dtype
        self.keys = torch.full(size, NAN).to(cache_dtype)
        self.values = torch.full(size, NAN).to(cache_dtype)
        self.table = torch.full((len(needed) + 3, max(needed, default=0) + 2), 10**6, dtype=torch.int32)
        self.table_row = torch.randperm(len(self.table), generator=chance)[: len(needed)].int()
        self.q = torch.randn(len(needed), num_heads, self.head_dim, generator=chance).to(self.dtype)
        self.slots = []
        self.scales = {}
        if self.cache_dtype is not None:
            self.scales = {name: torch.rand(num_kv_heads, generator=chance) + 0.5 for name in ("k_scale", "v_scale")}
        for row, (count, context) in enumerate(zip(needed, self.contexts, strict=True)):
            pages, ids = ids[:count], ids[count:]
            self.table[self.table_row[row], :count] = pages
            slots = (pages.long()[:, None] * self.page_size + torch.arange(self.page_size)).flatten()[:context]
            for cache in (self.keys, self.values):
                cache[slots] = torch.randn(context, *size[1:], generator=chance).to(cache_dtype)
            self.slots.append(slots)

    def run(self, rows: list[int] | None = None) -> torch.Tensor:
        """Results of these rows, computed together."""
        rows = list(range(len(self.contexts))) if rows is None else rows
        window = self.options.get("window")
        splits = DecodeSplits(
            len(self.contexts),
            num_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.head_dim,
            device=DEVICE,
            window=window,
            fixed_split=self.fixed_split,
            max_context=self.table.shape[1] * self.page_size,
        )
        context_len = torch.tensor([self.contexts[row] for row in rows], dtype=torch.int32)
        splits.plan(self.table_row[rows].to(DEVICE), context_len.to(DEVICE))
        self.split_count = splits.count[: len(rows)].tolist()
        self.split_starts = splits.items[: sum(self.split_count), KV_START].tolist()
        q = self.q[rows].to(DEVICE)
        out = torch.full_like(q, NAN)
        splits.attend(
            q,
            self.keys.to(DEVICE),
            self.values.to(DEVICE),
            out,
            page_table=self.table.to(DEVICE),
            page_size=self.page_size,
            scale=self.head_dim**-0.5,
            softcap=self.options.get("softcap"),
            **{name: scale.to(DEVICE) for name, scale in self.scales.items()},
        )
        return out.cpu()

    def expected(self, row: int) -> torch.Tensor:
        if not self.contexts[row]:
            return torch.zeros(self.heads[0], self.head_dim).double()
        keys, values = (cache[self.slots[row]].double() for cache in (self.keys, self.values))
        if self.scales:
            keys, values = keys * self.scales["k_scale"][:, None], values * self.scales["v_scale"][:, None]
        options = {"scale": self.head_dim**-0.5, **self.options}
        return ragged_attention(self.q[row : row + 1].double(), keys, values, **options)[0]

    def check(self) -> Case:
        got = self.run().double()
        assert got.isfinite().all()
        for row in range(len(self.contexts)):
            expected = self.expected(row)
            error = (got[row] - expected).norm() / expected.norm().clamp_min(1e-30)
            assert error < TOLERANCE[self.dtype], f"row {row} of {self.contexts[row]} tokens: error {error:.2e}"
        return self


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_contexts_at_the_borders_of_pages_tiles_and_splits(page_size: int) -> None:
    case = Case([1, 15, 0, 16, 17, 64, 127, 128, 129, 640], page_size).check()
    assert case.split_count[-1] > 1 and case.split_count[0] == 1, "both ways to write a result are taken"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_sizes_and_dtypes(head_dim: int, dtype: torch.dtype) -> None:
    Case([600, 7], heads=(3, 1), head_dim=head_dim, dtype=dtype).check()


@pytest.mark.parametrize("group", range(1, 17))
def test_groups(group: int) -> None:
    Case([70, 33], heads=(2 * group, 2), seed=group).check()


@pytest.mark.parametrize("window", [1, 40, 128, 5000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_windows_and_softcaps(window: int, softcap: float | None) -> None:
    options: dict[str, Any] = {"window": window} | ({"softcap": softcap} if softcap else {})
    Case([1, 39, 40, 41, 700, 0], options=options).check()


def test_softcap_alone() -> None:
    Case([5, 300], options={"softcap": 3.0}).check()


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_8_bit_cache_with_scales(head_dim: int, dtype: torch.dtype) -> None:
    Case([1, 90, 520, 0], head_dim=head_dim, dtype=dtype, cache_dtype=torch.float8_e4m3fn).check()


def test_queries_beyond_float16_beside_an_8_bit_cache() -> None:
    """They are multiplied as float16, whose largest number they become; what is no number stays none."""
    case = Case([40, 40, 3], dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn)
    case.q[0] *= 1e6
    case.q[2, 0, 0] = NAN
    got = case.run()
    case.q[0] = case.q[0].clamp(-65504, 65504)
    wanted = case.expected(0)
    assert torch.linalg.norm(got[0] - wanted) <= 1e-2 * torch.linalg.norm(wanted)
    assert got[1].isfinite().all()
    assert got[2, 0].isnan().all()


def test_an_8_bit_cache_with_a_softcap() -> None:
    """The scale of the keys belongs to the scores before they are capped."""
    Case([130], dtype=torch.float16, cache_dtype=torch.float8_e4m3fn, options={"softcap": 1.0}).check()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    contexts=st.lists(st.one_of(st.integers(0, 5), st.integers(1, 400)), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 16, 64]),
    group=st.integers(1, 16),
    head_dim=st.sampled_from([64, 80]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    fixed_split=st.sampled_from([None, 128, 256]),
    options=st.sampled_from([{}, {"window": 30}, {"softcap": 4.0}, {"window": 200, "softcap": 4.0}]),
)
def test_random_batches(**fields: Any) -> None:
    group = fields.pop("group")
    Case(heads=(group, 1), **fields).check()


@pytest.mark.parametrize("options", [{}, {"window": 200}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_fixed_splits_a_row_depends_on_itself_alone_to_the_bit(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    case = Case([200, 1, 0, 270], heads=(2, 1), dtype=dtype, fixed_split=128, options=options).check()
    together = case.run()
    assert all(start % 128 == 0 for start in case.split_starts)
    for row in (0, 1, 3):
        assert torch.equal(case.run([row])[0], together[row])
    assert torch.equal(case.run([3, 2, 1, 0]).flip(0), together)


def test_a_context_is_split_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sequence gets a long split and a tiny one; one long context among short ones is split."""
    monkeypatch.setattr("bough.kernels.attention.decode.num_processors", lambda device: 4)
    case = Case([2000, 20, 20, 20], heads=(1, 1))
    case.run()
    assert case.split_count[0] >= 4 and case.split_count[1:] == [1, 1, 1]
    even = Case([640] * 12, heads=(1, 1))
    even.run()
    assert even.split_count == [1] * 12, "there are as many sequences as programs fit"


def test_splits_are_planned_anew_for_each_batch() -> None:
    """Runs like a captured graph: the same memory, other lengths, fewer rows."""
    splits = DecodeSplits(4, num_heads=1, num_kv_heads=1, head_dim=64, device=DEVICE)
    for contexts in ([900, 1, 0, 30], [5, 700], [3]):
        case = Case(contexts, heads=(1, 1))
        splits.plan(case.table_row.to(DEVICE), torch.tensor(contexts, dtype=torch.int32, device=DEVICE))
        out = torch.full_like(case.q, NAN).to(DEVICE)
        caches = (case.keys.to(DEVICE), case.values.to(DEVICE))
        splits.attend(case.q.to(DEVICE), *caches, out, page_table=case.table.to(DEVICE), page_size=16, scale=0.125)
        for row in range(len(contexts)):
            torch.testing.assert_close(out[row].double().cpu(), case.expected(row), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fixed_split": 100, "max_context": 1000}, "multiple of 128, got 100"),
        ({"fixed_split": 128}, "max_context"),
        ({"fixed_split": 128, "max_context": 10**8}, "65535"),
    ],
)
def test_wrong_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeSplits(4, num_heads=1, num_kv_heads=1, head_dim=64, device=DEVICE, **arguments)


def test_other_batches_than_planned_are_refused() -> None:
    case = Case([5, 6])
    splits = DecodeSplits(1, num_heads=4, num_kv_heads=2, head_dim=64, device=DEVICE)
    context_len = torch.tensor(case.contexts, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="1 to 1 rows, got 2"):
        splits.plan(case.table_row.to(DEVICE), context_len)
    splits.plan(case.table_row[:1].to(DEVICE), context_len[:1])
    with pytest.raises(ValueError, match="1 rows were planned, got queries of 2"):
        splits.attend(case.q, case.keys, case.values, case.q, page_table=case.table, page_size=16, scale=1.0)
