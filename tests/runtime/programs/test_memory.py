"""Memory that programs hold, and how keys share it: of states that are kept, and of programs that run."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from collections.abc import Iterator

import pytest

from bough.runtime.programs import costs, interpreter
from bough.runtime.programs.costs import BRANCH_TOKENS, MATCHING_TOKENS, VALUE_TOKENS
from bough.runtime.programs.memory import SHARE_OF_LEFT, Account, Memory
from bough.runtime.protocol.condition import Either, Matches, Ref
from bough.runtime.protocol.errors import OverloadedError
from bough.runtime.protocol.program import Assign, Fork, Gen, Join, Op, Repeat, Text, When
from bough.runtime.protocol.sampling_params import SamplingParams

from .oracle import Heard, assert_all_free
from .place import GREEDY, bound
from .tool_place import ToolPlace

ENDLESS = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace(max_states=1000)
    yield made
    made.close()
    memory = made.executor._memory
    assert memory.num_held == 0
    assert not memory._held


def held(place: ToolPlace, name: str = "p") -> int:
    return place.executor._states[name].account.num_held


# Sharing


def test_accounts_against_a_model() -> None:
    rng = random.Random(3)
    memory = Memory(lambda: 10_000)
    accounts = [(Account(memory, rng.choice("abc")), 0) for _ in range(30)]
    for _ in range(2000):
        index = rng.randrange(len(accounts))
        account, count = accounts[index]
        if rng.random() < 0.05:
            account.close()
            account.add(5)  # what comes late is not counted
            accounts[index] = Account(memory, rng.choice("abc")), 0
            continue
        change = rng.randrange(-count, 100)
        account.add(change)
        accounts[index] = account, count + change
        for name in "abc":
            assert memory.held(name) == sum(number for each, number in accounts if each.tenant == name)
    assert memory.num_held == sum(number for _, number in accounts)


@pytest.mark.parametrize("num_keys", [1, 2, 3, 8])
def test_keys_that_flood_leave_room_for_another(num_keys: int) -> None:
    memory = Memory(lambda: 100_000)

    def flood(account: Account) -> bool:
        account.add(10)
        try:
            account.check()
        except OverloadedError:
            account.add(-10)
            return False
        return True

    accounts = [Account(memory, f"key {index}") for index in range(num_keys)]
    while sum(flood(account) for account in accounts):
        pass
    assert 100_000 - memory.num_held >= 100_000 / (SHARE_OF_LEFT * num_keys + 2)
    assert max(account.num_held for account in accounts) - min(account.num_held for account in accounts) < 100
    assert flood(Account(memory, "another"))


# Kept states


def test_branches_and_values_of_kept_states_are_counted(place: ToolPlace) -> None:
    """1,000 branches without a token take 2 MB, and so do 30,000 values of no character."""
    place.run([Fork(0, tuple(range(1, 1001)))], keep=True)
    assert held(place) >= 1001 * BRANCH_TOKENS
    body = tuple(Assign(0, "a", ("",)) for _ in range(30))
    place.run([Repeat(0, body, Either(()), 1000)], "values", keep=True)
    assert held(place, "values") >= 30_000 * VALUE_TOKENS


def test_kept_states_of_branches_make_way(place: ToolPlace) -> None:
    bound(place.machine, held_tokens=1_000_000)
    place.run([Text(0, ("x",))], "quiet", keep=True, namespace="quiet")
    for index in range(20):
        place.run([Fork(0, tuple(range(1, 1001)))], f"flood {index}", keep=True, namespace="flood/salt")
    names = list(place.executor._states)
    assert names[0] == "quiet" and names[-1] == "flood 19"
    assert 5 <= len(names) <= 8
    assert place.executor._memory.num_held < 1_000_000


def test_a_kept_state_takes_about_what_it_counts(place: ToolPlace) -> None:
    body = tuple(Assign(0, "a", ("",)) for _ in range(100))
    kinds: dict[str, list[Op]] = {
        "branches": [Fork(0, tuple(range(1, 1001)))],
        "values": [Repeat(0, body, Either(()), 100)],
        "text": [Fork(0, tuple(range(1, 101))), *(Text(branch, ("abcdefgh " * 200,)) for branch in range(1, 101))],
    }
    for name, ops in kinds.items():
        place.run(ops, f"before {name}", keep=True)
        gc.collect()
        tracemalloc.start()
        place.run(ops, name, keep=True)
        gc.collect()
        num_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert num_bytes <= 32 * held(place, name), name


# Programs that run


def test_a_fork_shares_what_was_before_it(place: ToolPlace) -> None:
    """17 MB each, of 2,000 tokens in 1,000 branches, when a fork was a copy."""
    children = tuple(range(1, 1001))
    ops: list[Op] = [Text(0, ("x" * 1900,)), Fork(0, children), *(Assign(number, "v", ("",)) for number in children)]
    place.run(ops, "before", keep=True)
    gc.collect()
    tracemalloc.start()
    place.run(ops, keep=True)
    gc.collect()
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert num_bytes < 6 << 20
    assert held(place) < 1001 * (BRANCH_TOKENS + VALUE_TOKENS) + 4000
    assert place.executor._states["p"].num_tokens > 1000 * 1900  # what its texts would be, told one by one


def test_running_programs_of_a_key_hold_no_more_than_its_share(place: ToolPlace) -> None:
    bound(place.machine, held_tokens=1_000_000)
    ops: list[Op] = [Text(0, ("x",)), Fork(0, tuple(range(1, 1001))), Gen(0, "g", ENDLESS)]
    flood: list[Heard] = []
    for index in range(20):
        flood.append(place.start(ops, f"flood {index}", namespace="flood"))
    while place.has_calls:
        place.next_call()()
    errors = [heard.failed.error for heard in flood if heard.over]
    assert 10 <= len(errors) < 20
    assert {error.code for error in errors} == {"engine_overloaded"}
    assert "of this key" in errors[0].message
    assert all(error.may_retry is not False for error in errors)
    quiet = place.run([Text(0, ("x",)), Gen(0, "g", GREEDY)], "quiet", namespace="quiet")
    assert quiet.done
    for index in range(20):
        place.executor.drop(f"flood {index}")
    again = place.start(ops, "again", namespace="flood")
    assert not again.over
    place.executor.drop("again")


def test_instructions_that_wait_are_counted(place: ToolPlace) -> None:
    ops: list[Op] = [Text(0, ("x",)), Gen(0, "g", ENDLESS), *(Text(0, ("y" * 16,)) for _ in range(1000))]
    heard = place.start(ops)
    place.drive(lambda: "p" in place.executor._states and not place.executor._arrivals)
    assert held(place) >= 1000 * (costs.OP_TOKENS + 1)
    place.executor.drop("p")
    assert heard.over
    place.run([Assign(0, f"v{index}", ("x",)) for index in range(1000)], "kept", keep=True)
    assert held(place, "kept") < 1000 * (VALUE_TOKENS + 2) + 2 * BRANCH_TOKENS  # they are not kept with the state


def test_names_that_forks_put_together_are_counted(place: ToolPlace) -> None:
    """Each of them puts together all names before it: 1,000 with 1,000 names each take 80 MB."""
    ops: list[Op] = []
    for index in range(300):
        ops += [Assign(0, f"v{index}", ("",)), Fork(0, (index + 1,))]
    place.run(ops, keep=True)
    assert held(place) >= 300 * 300 // 2 * costs.NAME_TOKENS


def test_a_program_that_is_refused_holds_nothing(place: ToolPlace) -> None:
    assert place.refusal([Text(0, ("x",)), Text(7, ("x",))]).code == "invalid_value"
    bound(place.machine, held_tokens=1000)
    assert place.refusal([Text(0, ("x" * 20_000,))]).code == "engine_overloaded"
    assert place.executor.num_states == 0
    assert place.executor._memory.num_held == 0


def test_a_comparison_under_way_is_counted(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MAX_SLICE_S", 1e-9)
    heard = place.start([Assign(0, "x", ("ab " * 3000,)), When(0, Matches(Ref(0, "x"), "(.|\n)*c"))], keep=True)
    most = 0
    while not heard.over:
        place.next_call()()
        most = max(most, held(place))
    assert most > MATCHING_TOKENS
    assert held(place) < MATCHING_TOKENS
    cut_off = place.start([When(0, Matches(Ref(0, "x"), "(.|\n)*d"))], resume=True, keep=True)
    while held(place) < MATCHING_TOKENS:
        place.next_call()()
    place.executor.drop("p")
    assert cut_off.over
    gc.collect()
    assert place.executor._memory.num_held == 0


def test_what_a_branch_loses_is_given_back(place: ToolPlace) -> None:
    body: tuple[Op, ...] = (Fork(0, (1,)), Text(1, ("abcdefgh" * 20,)), Join(0, (1,)))
    place.run([Text(0, ("x",)), Repeat(0, body, Either(()), 200)], keep=True)
    assert held(place) < 2 * BRANCH_TOKENS + 500
    assert_all_free(place.engine)


def test_a_program_that_is_dropped_is_freed_without_a_collection(place: ToolPlace) -> None:
    """The calls that its branches had begun refer to it: a collection of all objects would stop everybody's steps."""
    children = tuple(range(1, 101))
    place.start([Text(0, ("x",)), Fork(0, children), *(Gen(child, "v", ENDLESS) for child in children)])
    place.drive(lambda: sum(branch.pending is not None for branch in place.executor._states["p"].branches.values()) > 5)
    state = weakref.ref(place.executor._states["p"])
    gc.collect()
    gc.disable()
    try:
        place.executor.drop("p")
        place.drive(lambda: place.engine.idle)
        assert state() is None
    finally:
        gc.enable()
