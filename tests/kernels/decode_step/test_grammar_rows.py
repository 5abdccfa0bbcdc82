"""Grammar tables on the device against automata that are followed by hand, and the pool that the tables live in."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.decode_step import grammar_table
from bough.kernels.decode_step.grammar_table import GrammarPool, GrammarTable, TablePlace

from ...support.triton_interpreter import DEVICE
from . import reference

from bough.kernels.decode_step.grammar_rows import advance_states  # isort: skip  after the interpreter

VOCAB = 45
Automaton = list[dict[int, int]]  # state -> token -> next state
ADVANCES = {"torch": reference.advance_states, "triton": advance_states}


def random_automaton(chance: random.Random) -> Automaton:
    """Few distinct columns, so that classes hold more than one token; some states allow nothing."""
    num_states = chance.randint(1, 6)
    columns = [[chance.choice([-1, chance.randrange(num_states)]) for _ in range(num_states)] for _ in range(5)]
    column_of = [chance.choice(columns) for _ in range(VOCAB)]
    return [
        {token: column[state] for token, column in enumerate(column_of) if column[state] >= 0}
        for state in range(num_states)
    ]


def tabulate(automaton: Automaton) -> GrammarTable:
    columns = [tuple(state.get(token, -1) for state in automaton) for token in range(VOCAB)]
    distinct = sorted(set(columns))
    mask = torch.zeros(len(automaton), -(-VOCAB // 32), dtype=torch.int64)
    for number, state in enumerate(automaton):
        for token in state:
            mask[number, token // 32] |= 1 << token % 32
    return GrammarTable(
        mask=mask.to(torch.int32),
        token_class=torch.tensor([distinct.index(column) for column in columns], dtype=torch.int32),
        next_state=torch.tensor(distinct, dtype=torch.int32).T.contiguous(),
    )


def follow(automaton: Automaton, state: int, token: int) -> int:
    if state < 0 or token < 0:
        return state
    return automaton[state].get(token, -1)


def allowed(words: torch.Tensor) -> set[int]:
    return {token for token in range(32 * len(words)) if int(words[token // 32]) >> token % 32 & 1}


def make_pool(**sizes: int) -> GrammarPool:
    sizes = {"num_tables": 8, "num_rows": 64, "num_transitions": 400} | sizes
    return GrammarPool(vocab_size=VOCAB, **sizes, device=DEVICE)


def add(pool: GrammarPool, automaton: Automaton) -> TablePlace:
    place = pool.add(tabulate(automaton))
    assert place is not None
    return place


@pytest.mark.parametrize("kind", ADVANCES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_many_grammars_step_by_step(kind: str, seed: int) -> None:
    """Requests in random order: dead states, absent tokens, tokens outside the vocabulary, rows without grammar."""
    chance = random.Random(seed)
    automata = [random_automaton(chance) for _ in range(4)]
    pool = make_pool()
    pool.next_state.fill_(1 << 30)  # what is read beyond the tables shows
    added = [add(pool, automaton) for automaton in automata]
    num_requests = chance.randint(1, 50)
    uses = [chance.randrange(4) for _ in range(num_requests)]
    model = [chance.choice([-1, 0]) for _ in range(num_requests)]
    states = torch.tensor(model, dtype=torch.int32, device=DEVICE)
    places = torch.tensor([added[use].entry for use in uses], dtype=torch.int32, device=DEVICE)
    for _ in range(6):
        rows = chance.sample(range(num_requests), chance.randint(0, num_requests))
        rows = [row if chance.random() < 0.8 else -1 for row in rows]
        tokens = []
        for row in rows:
            options = list(automata[uses[row]][model[row]]) if model[row] >= 0 else []
            tokens.append(chance.choice(options or [0]) if chance.random() < 0.7 else chance.randint(-2, VOCAB + 70))
        mask_row = torch.full((len(rows),), 77, dtype=torch.int32, device=DEVICE)
        ADVANCES[kind](
            pool,
            states=states,
            places=places,
            state_row=torch.tensor(rows, dtype=torch.int32, device=DEVICE),
            tokens=torch.tensor(tokens, dtype=torch.int64, device=DEVICE),
            mask_row=mask_row,
        )
        for row, token in zip(rows, tokens, strict=True):
            if row >= 0:
                model[row] = follow(automata[uses[row]], model[row], token)
        assert states.tolist() == model
        for row, under in zip(rows, mask_row.tolist(), strict=True):
            if row < 0:
                assert under == -1
            else:
                wanted = set(automata[uses[row]][model[row]]) if model[row] >= 0 else set()
                assert (under == 0) == (model[row] < 0)
                assert allowed(pool.mask[under].cpu()) == wanted


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_advance_of_one_table(seed: int) -> None:
    automaton = random_automaton(random.Random(seed))
    table = tabulate(automaton)
    pairs = [(state, token) for state in range(-1, len(automaton)) for token in range(-2, VOCAB + 3)]
    states, tokens = torch.tensor(pairs).T
    assert reference.advance(table, states, tokens).tolist() == [follow(automaton, *pair) for pair in pairs]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_a_pool_keeps_what_it_holds_through_adding_and_removing(seed: int) -> None:
    chance = random.Random(seed)
    pool = make_pool(num_tables=4, num_rows=14, num_transitions=60)
    addresses = [tensor.data_ptr() for tensor in (pool.mask, pool.token_class, pool.next_state)]
    held: list[tuple[GrammarTable, TablePlace]] = []
    for _ in range(30):
        if held and chance.random() < 0.4:
            pool.remove(held.pop(chance.randrange(len(held)))[1])
        table = tabulate(random_automaton(chance))
        place = pool.add(table)
        if place is not None:
            held.append((table, place))
        for table, place in held:
            size = place.num_states * place.num_classes
            for kept, at, right in (
                (pool.mask, place.mask_base, table.mask),
                (pool.token_class, place.class_base, table.token_class),
                (pool.next_state, place.next_base, table.next_state.flatten()),
            ):
                assert torch.equal(kept[at : at + len(right)].cpu(), right)
            assert size == table.next_state.numel()
        assert not pool.mask[0].any()
    for _, place in held:
        pool.remove(place)
    whole = GrammarTable(torch.ones(13, 2).int(), torch.zeros(VOCAB).int(), torch.zeros(13, 4).int())
    assert pool.could_hold(*whole.next_state.shape) and pool.add(whole) is not None  # nothing leaked: it fills all rows
    more = GrammarTable(torch.ones(14, 2).int(), torch.zeros(VOCAB).int(), torch.zeros(14, 4).int())
    wide = GrammarTable(torch.ones(13, 2).int(), torch.zeros(VOCAB).int(), torch.zeros(13, 5).int())
    assert not pool.could_hold(*more.next_state.shape) and not pool.could_hold(*wide.next_state.shape)
    assert [tensor.data_ptr() for tensor in (pool.mask, pool.token_class, pool.next_state)] == addresses


@pytest.mark.parametrize("scarce", ["num_tables", "num_rows", "num_transitions"])
def test_a_full_pool_says_so_and_loses_nothing(scarce: str) -> None:
    pool = make_pool(**{scarce: {"num_tables": 1, "num_rows": 4, "num_transitions": 7}[scarce]})
    table = GrammarTable(torch.ones(2, 2).int(), torch.zeros(VOCAB).int(), torch.zeros(2, 2).int())
    first = pool.add(table)
    assert first is not None
    assert pool.add(table) is None
    pool.remove(first)
    assert pool.could_hold(*table.next_state.shape)
    assert pool.add(table) == first
    assert pool.add(table) is None


def test_what_does_not_fit_is_refused() -> None:
    mask, kinds, following = torch.ones(2, 2).int(), torch.zeros(VOCAB).int(), torch.zeros(2, 1).int()
    with pytest.raises(ValueError, match="mask must have shape"):
        GrammarTable(mask[:1], kinds, following)
    with pytest.raises(ValueError, match="next_state must be int32"):
        GrammarTable(mask, kinds, following.long())
    with pytest.raises(ValueError, match="token_class must be"):
        GrammarTable(mask, kinds + 1, following)
    with pytest.raises(ValueError, match="next_state must be"):
        GrammarTable(mask, kinds, following + 2)
    with pytest.raises(ValueError, match="at least one state"):
        GrammarTable(mask[:0], kinds, following[:0])
    with pytest.raises(ValueError, match="tokens"):
        make_pool().add(GrammarTable(mask[:, :1], kinds[:9], following))


def test_a_table_that_there_is_no_memory_to_upload_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tabulate([{0: 0}])
    pool = GrammarPool(vocab_size=VOCAB, num_tables=1, num_rows=2, num_transitions=8, device=DEVICE)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(grammar_table, "upload", fail)
        with pytest.raises(torch.OutOfMemoryError):
            pool.add(table)
    assert pool.add(table) is not None
