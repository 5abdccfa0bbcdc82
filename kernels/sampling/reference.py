"""Parameters of a draw from a row of logits, and its plain reference: exact fixed-point sums, in vocabulary order.

A token's weight is exp((logit - largest) / temperature) in units of 2^-42, cut to a whole number. Sums of whole numbers
do not depend on their order, so that every way to add them up finds the same token, and floor(u * total) for u in
[0, 1) lies below the total: the token drawn always has a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from .mask_logits import unpack_mask

ONE = 2**42
"""The weight of the likeliest token. 2^20 tokens of it add up to less than 2^63; less than 1 / ONE is no weight."""

COLDEST = 1e-30
"""Temperatures below are taken as this one: float32 holds logits divided by it."""

NOT_FINITE = -1
NONE_ALLOWED = -2

_CANDIDATES = 1024
"""Likeliest tokens that top-p looks at first; 16 times as many if they are too few."""
_LIKELIEST_BLOCK = 2048
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Sampling parameters of each row: device tensors [B], contiguous.

    temperature  float32; 0 = greedy; negative: the row is padding, nothing of it is read or written
    top_k        int32; 0 = off
    top_p        float32; 1 = off
    min_p        float32; 0 = off
    seed         int64, the bits of the uint64
    position     int64, of the token that is drawn
    repetition   float32; 1 = off
    frequency    float32; 0 = off
    presence     float32; 0 = off
    count_row    int32, row of `SampleTables.counts`, or -1: no penalties, nothing counted. Distinct among rows
    mask_row     int32, row of `SampleTables.mask`, or -1: all tokens allowed
    bias_row     int32, row of `SampleTables.bias_ids`, or -1: none
    token_row    int32, row of `SampleTables.last_token`, or -1: not written. Distinct among rows
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor
    count_row: torch.Tensor
    mask_row: torch.Tensor
    bias_row: torch.Tensor
    token_row: torch.Tensor

    @classmethod
    def greedy(cls, num_rows: int, device: torch.device | str) -> SampleRows:
        """Rows that are drawn greedily, without penalties, masks or bias."""
        values = {name: torch.zeros(num_rows, dtype=torch.float32, device=device) for name in _FLOATS}
        values |= {name: torch.full((num_rows,), -1, dtype=torch.int32, device=device) for name in _TABLE_ROWS}
        values |= {name: torch.zeros(num_rows, dtype=torch.int64, device=device) for name in ("seed", "position")}
        values["top_k"] = torch.zeros(num_rows, dtype=torch.int32, device=device)
        values["top_p"] = torch.ones(num_rows, dtype=torch.float32, device=device)
        values["repetition"] = torch.ones(num_rows, dtype=torch.float32, device=device)
        return cls(**values)

    def select(self, index: slice) -> SampleRows:
        """Some of the rows, as views."""
        return SampleRows(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


_FLOATS = ("temperature", "min_p", "frequency", "presence")
_TABLE_ROWS = ("count_row", "mask_row", "bias_row", "token_row")


@dataclass(frozen=True, slots=True)
class SampleTables:
    """Tables that rows point into: contiguous device tensors. None: no row of the batch points there, whatever it is.

    counts       [S, V] int16: times the token was generated, up to 32767; bit 15: it is in the prompt. Updated
    mask         [M, ceil(V / 32)] int32; bit i % 32 of word i // 32 is token i, 1 = allowed
    bias_ids     [N, K] int32, ascending, without repetition; V and above: padding
    bias_values  [N, K] float32, added to the logits after penalties; -inf bans a token
    last_token   [L] int64: the token drawn last. Updated, but not where there was none to draw
    """

    counts: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    bias_ids: torch.Tensor | None = None
    bias_values: torch.Tensor | None = None
    last_token: torch.Tensor | None = None


def uniform_bits(seed: int, position: int) -> int:
    """The 53 random bits of (seed, position): SplitMix64 of both, the highest bits."""
    return _mix(_mix(seed & _WORD) ^ (position & _WORD)) >> 11


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


@torch.inference_mode()
def sample_rows(logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor) -> None:
    """Draws a token from each row of `logits` [B, V], any float type, into `out` [B] int64, and updates the tables.

    NOT_FINITE where a logit is not a finite number, NONE_ALLOWED where mask and bias allow no token.
    """
    for row in range(logits.shape[0]):
        if float(rows.temperature[row]) < 0.0:
            continue
        token = NOT_FINITE
        if bool(logits[row].isfinite().all()):
            token = draw(adjust(logits[row], rows, row, tables), rows, row)
        out[row] = token
        if token >= 0:
            _record(token, rows, row, tables)


def adjust(line: torch.Tensor, rows: SampleRows, row: int, tables: SampleTables) -> torch.Tensor:
    """A row's logits [V] after penalties, bias and mask, float32: each step is rounded, so that ties are defined."""
    line = line.float()
    if tables.counts is not None and (count_row := int(rows.count_row[row])) >= 0:
        seen = tables.counts[count_row].int()
        times = (seen & 0x7FFF).float()
        factor = rows.repetition[row]
        line = torch.where(seen != 0, torch.where(line > 0, line / factor, line * factor), line)
        line = torch.where(times > 0, line - (rows.frequency[row] * times + rows.presence[row]), line)
    if tables.bias_ids is not None and (bias_row := int(rows.bias_row[row])) >= 0:
        assert tables.bias_values is not None
        real = tables.bias_ids[bias_row] < line.shape[0]
        ids = tables.bias_ids[bias_row][real].long()
        line = line.index_add(0, ids, tables.bias_values[bias_row][real])
    if tables.mask is not None and (mask_row := int(rows.mask_row[row])) >= 0:
        allowed = unpack_mask(tables.mask[mask_row : mask_row + 1], line.shape[0])[0]
        line = line.masked_fill(~allowed, -torch.inf)
    return line


def draw(line: torch.Tensor, rows: SampleRows, row: int) -> int:
    """One token of the adjusted logits `line` [V], or NOT_FINITE or NONE_ALLOWED."""
    top = float(line.max())
    if not top < float("inf"):
        return NOT_FINITE
    if top == -float("inf"):
        return NONE_ALLOWED
    if float(rows.temperature[row]) == 0.0 or int(rows.top_k[row]) == 1:
        return int((line == top).int().argmax())
    numbers = (float(rows.temperature[row]), int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
    return pick(*kept(line, *numbers), uniform_bits(int(rows.seed[row]), int(rows.position[row])))


def pick(tokens: torch.Tensor | None, weights: torch.Tensor, bits: int) -> int:
    """The token at which the running sum of `weights` int64 [N] passes the random number, `bits` of 2^53, of the total.

    tokens   int64 [N], which each weight is of; None: the token ids are the places
    """
    reach = weights.cumsum(0)
    place = int(torch.searchsorted(reach, int(reach[-1]) * bits >> 53, right=True))
    return place if tokens is None else int(tokens[place])


def kept(
    line: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Applies top-k, then top-p to what is left, then min-p to the logits `line` [V], float32.

    The likeliest come first, and of equal logits the lower token id. top-p keeps a token while those before it hold
    less than top_p of the mass; the first always stays. Returns tokens in rising order (None: all there are) and the
    weight of each, int64, 0 for what is not kept.
    """
    temperature = max(temperature, COLDEST)
    top = line.max().double()

    def weigh(values: torch.Tensor) -> torch.Tensor:
        return (torch.exp((values.double() - top) / temperature) * ONE).long()

    tokens = None
    if 0 < top_k < line.shape[0]:
        cut = line.topk(top_k).values[-1]
        tokens = (line >= cut).nonzero()[:, 0]
        above = line[tokens] > cut
        num_equal = top_k - int(above.sum())
        tokens = tokens[above | ((~above).cumsum(0) <= num_equal)]
        line = line[tokens]
    weights = weigh(line)
    if top_p < 1.0:
        numerator, denominator = top_p.as_integer_ratio()
        goal = max(-(-int(weights.sum()) * numerator // denominator), 1)
        cut, mass_above = _mass_cut(line, weigh, goal)
        weights = _cut_off(line, weights, cut, -(-(goal - mass_above) // max(int(weigh(cut)), 1)))
    return tokens, torch.where(weights >= int(min_p * ONE), weights, 0)


def _mass_cut(line: torch.Tensor, weigh: Callable[[torch.Tensor], torch.Tensor], goal: int) -> tuple[torch.Tensor, int]:
    """The logit at which the mass of the likeliest tokens reaches `goal`, and the mass above it."""
    size = min(_CANDIDATES, line.shape[0])
    while True:
        values = line.topk(size).values
        weights = weigh(values)
        reached = weights.cumsum(0) >= goal
        if bool(reached[-1]) or size == line.shape[0]:
            cut = values[int(reached.int().argmax())] if bool(reached[-1]) else values[-1]
            return cut, int(weights[values > cut].sum())
        size = min(size * 16, line.shape[0])


def _cut_off(line: torch.Tensor, weights: torch.Tensor, cut: torch.Tensor, num_equal: int) -> torch.Tensor:
    """Weights of the tokens above `cut` and of the first `num_equal` at it."""
    equal = line == cut
    return torch.where((line > cut) | (equal & (equal.cumsum(0) <= num_equal)), weights, 0)


def likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` likeliest token ids of each row, int64 [R, count], of `logits` [R, V] float32: of equal ones the
    lower id first. Rows that are not all numbers come in any order. Waits for nothing."""
    num_rows, vocab_size = logits.shape
    if count == 0:
        return torch.empty(num_rows, 0, dtype=torch.int64, device=logits.device)
    backward = torch.arange(vocab_size - 1, -1, -1, device=logits.device)
    found = []
    for lines in torch.split(logits, 16):  # whose keys take twice the memory of logits
        bits = (lines + 0.0).view(torch.int32)  # 0 and -0 are the same
        keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32 | backward
        if count <= _LIKELIEST_BLOCK < vocab_size:
            # A row is more than one block of threads: first the likeliest of each piece, then those of all pieces.
            padding = -vocab_size % _LIKELIEST_BLOCK
            pieces = torch.nn.functional.pad(keys, (0, padding), value=-(1 << 63)).view(-1, _LIKELIEST_BLOCK)
            keys = pieces.topk(count).values.view(len(lines), -1)
        found.append(vocab_size - 1 - (keys.topk(count).values & 0xFFFFFFFF))
    return torch.cat(found)


def _record(token: int, rows: SampleRows, row: int, tables: SampleTables) -> None:
    count_row, token_row = int(rows.count_row[row]), int(rows.token_row[row])
    if tables.counts is not None and count_row >= 0:
        times = int(tables.counts[count_row, token])
        if times & 0x7FFF != 0x7FFF:
            tables.counts[count_row, token] = times + 1
    if tables.last_token is not None and token_row >= 0:
        tables.last_token[token_row] = token
