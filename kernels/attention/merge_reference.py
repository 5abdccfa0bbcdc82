"""Merging of partial attention results in plain torch: what the merge kernels are compared with."""

from __future__ import annotations

import torch


def merge_partials(partial_out: torch.Tensor, partial_lse: torch.Tensor) -> torch.Tensor:
    """Attention over the union of N disjoint sets of keys, from the attention over each.

    partial_out   [N, H, D]   results, each normalised by its own sum of weights; not read where its lse is -inf
    partial_lse   [N, H]      logarithm to base 2 of that sum; -inf: the set was empty
    returns       [H, D]      in the dtype of `partial_out`; 0 where all sets were empty, or N is 0
    """
    if not len(partial_lse):
        return partial_out.new_zeros(partial_out.shape[1:])
    top = partial_lse.amax(dim=0)
    weight = torch.exp2(partial_lse - torch.where(top.isneginf(), 0.0, top))
    parts = torch.where(partial_lse.isneginf()[..., None], 0.0, partial_out)
    total = weight.sum(dim=0)
    merged = (weight[..., None] * parts).sum(dim=0) / torch.where(total == 0.0, 1.0, total)[:, None]
    return merged.to(partial_out.dtype)


def merge_lists(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    *,
    rows: torch.Tensor,
    starts: torch.Tensor,
    partials: torch.Tensor,
) -> None:
    """Writes out[rows[i]], for every i, from the partial rows partials[starts[i] : starts[i + 1]].

    out           [T, H, D]        rows that are not listed are left as they are
    partial_out   [P, H, D]        see merge_partials
    partial_lse   [P, H]
    rows          [N]       int    distinct
    starts        [N + 1]   int
    partials      [...]     int
    """
    for index, row in enumerate(rows.tolist()):
        chosen = partials[int(starts[index]) : int(starts[index + 1])].long()
        out[row] = merge_partials(partial_out[chosen], partial_lse[chosen]).to(out.dtype)
