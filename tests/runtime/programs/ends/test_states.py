"""Lives of programs: time limits, failures, aborts, and the states kept between their stretches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bough.runtime.protocol.program import STATE_LIFE_S, Fork, Gen, Op, Select, Text
from bough.runtime.protocol.sampling_params import SamplingParams

from ..oracle import assert_all_free, drive
from ..place import EVERYTHING, GREEDY, Place


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.executor.close()
    assert made.executor.num_states == 0
    assert_all_free(made.engine)
    made.engine.close()


def test_a_gen_past_its_time_fails(place: Place) -> None:
    endless = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)
    heard = place.start([Text(0, ("x",)), Gen(0, "g", endless, timeout_s=5.0)])
    place.engine.step()
    place.clock.now += 4.9
    place.engine.step()
    assert not heard.over
    place.clock.now += 0.2
    place.engine.step()
    assert heard.failed.error.code == "generation_timeout"
    assert (heard.failed.branch, heard.failed.index) == (0, 1)


def test_a_program_past_its_time_fails_between_calls_and_within_one(place: Place) -> None:
    endless = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)
    two: list[Op] = [Text(0, ("x",)), Gen(0, "a", GREEDY), Gen(0, "b", endless, timeout_s=100.0)]
    within = place.start(two, timeout_s=9.0)
    for _ in range(20):
        place.engine.step()
    place.clock.now += 10.0
    place.engine.step()
    assert (within.failed.error.code, within.failed.index) == ("generation_timeout", 2)
    between = place.start([Text(0, ("x",)), Gen(0, "a", GREEDY), Text(0, ("!",)), Select(0, "b", ("c",))], timeout_s=9)
    for _ in range(GREEDY.max_tokens or 0):
        assert not between.over
        place.clock.now += 1.4  # the last token comes before the time is up
        place.engine.step()
        if (0, "a") in between.values:
            break
    place.clock.now += 10.0
    drive(place.engine)
    assert between.failed.error.code == "generation_timeout"


def test_a_generation_that_fails_stops_all_branches(place: Place) -> None:
    place.model.broken = ord("!")
    endless = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)
    ops: list[Op] = [
        Text(0, ("x",)),
        Gen(0, "ok", GREEDY),
        Fork(0, (1, 2)),
        Gen(1, "a", endless),
        Text(2, ("!",)),
        Gen(2, "b", endless),
    ]
    other = place.start([Text(0, ("else",)), Gen(0, "g", GREEDY)], "other")
    heard = place.start(ops, keep=True)
    drive(place.engine)
    assert (heard.failed.error.code, heard.failed.branch, heard.failed.index) == ("nonfinite_logits", 2, 5)
    assert other.done
    assert_all_free(place.engine)
    with pytest.raises(ValueError, match="gone"):
        place.start([Text(0, ("y",))], resume=True)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5, 8, 13])
def test_abort_at_any_step_ends_every_stretch(place: Place, num_steps: int) -> None:
    """A listener hears that its submission is over; nothing goes on, and the pages come back."""
    first = place.start(EVERYTHING[:30], keep=True)
    second = place.start(EVERYTHING[30:], keep=True, resume=True)
    for _ in range(num_steps):
        place.engine.step()
    place.executor.drop("p")
    place.executor.drop("p")
    place.executor.drop("unknown")
    assert first.over
    assert second.failed.error.code == "aborted"
    assert_all_free(place.engine)
    assert place.executor.num_states == 0


def test_close_fails_what_runs_and_refuses_more() -> None:
    place = Place()
    heard = place.start(EVERYTHING)
    kept = place.run([Text(0, ("x",))], "kept", keep=True)
    running = place.start(EVERYTHING, "running")
    place.executor.close()
    assert kept.done
    assert heard.done
    assert running.failed.error.code == "engine_dead"
    assert place.executor.num_states == 0
    with pytest.raises(Exception, match="stopped"):
        place.start([Text(0, ("x",))])
    assert_all_free(place.engine)
    place.engine.close()


def test_the_least_recently_used_state_goes_first() -> None:
    place = Place(max_states=2)
    for name in ("a", "b"):
        place.run([Text(0, (name,))], name, keep=True)
    place.run([Text(0, ("!",))], "a", keep=True, resume=True)
    place.run([Text(0, ("c",))], "c", keep=True)
    assert place.run([Text(0, ("",))], "a", keep=True, resume=True).done.texts == {0: "a!"}
    with pytest.raises(ValueError, match="gone") as caught:
        place.start([Text(0, ("",))], "b", resume=True)
    assert caught.value.code == "state_not_found"  # type: ignore[attr-defined]
    place.engine.close()


def test_running_programs_do_not_push_kept_states_out() -> None:
    place = Place(max_states=1)
    place.run([Text(0, ("kept",))], "kept", keep=True)
    heard = [place.start([Text(0, ("x",)), Gen(0, "g", GREEDY)], str(index), keep=False) for index in range(5)]
    drive(place.engine)
    assert all(one.done for one in heard)
    assert place.run([Text(0, ("!",))], "kept", resume=True).done.texts == {0: "kept!"}
    assert place.executor.num_states == 0
    place.engine.close()


def test_idle_states_are_dropped_after_a_while_in_the_order_of_their_use(place: Place) -> None:
    long = place.start([Text(0, ("x",)), Gen(0, "g", GREEDY)], "long", keep=True)
    assert place.start([Text(0, ("y",))], "short", keep=True).done
    place.clock.now += STATE_LIFE_S - 1
    drive(place.engine)
    assert long.done
    place.clock.now += 2
    place.run([Text(0, ("z",))], "any")
    with pytest.raises(ValueError, match="gone"):
        place.start([Text(0, ("",))], "short", resume=True)
    assert place.run([Text(0, ("!",))], "long", resume=True).done


def test_idle_states_age_while_nobody_runs_anything(place: Place) -> None:
    assert place.executor.sleep_s() is None
    assert place.start([Text(0, ("x",))], "old", keep=True).done
    place.executor.expire()
    place.clock.now += STATE_LIFE_S
    assert place.executor.sleep_s() == 0.0
    with pytest.raises(ValueError, match=r"gone .* or the engine was started again"):
        place.start([Text(0, ("",))], "old", resume=True)
    assert place.start([Text(0, ("y",))], "old", keep=True).done.texts == {0: "y"}  # the id is free
    place.executor.expire()
    assert 0.0 < (place.executor.sleep_s() or 0.0) <= 60.0
    place.clock.now += STATE_LIFE_S
    place.executor.expire()
    assert place.executor.num_states == 0 and place.executor.sleep_s() is None


def test_a_state_lives_until_its_last_stretch_has_ended(place: Place) -> None:
    """A stretch that does not keep the state ends first: the other one is still found, and stopped, by its id."""
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,)), Gen(1, "g", SamplingParams(max_tokens=500, ignore_eos=True))]
    first = place.start(ops, keep=True)
    second = place.start([Text(0, ("!",))], resume=True)
    assert second.done.texts == {0: "x!", 1: "x"}
    assert not first.over
    assert place.executor.num_states == 1
    with pytest.raises(ValueError, match="gone"):
        place.start([Text(0, ("",))], resume=True)
    place.executor.drop("p")
    assert first.failed.error.code == "aborted"


def test_names_of_programs(place: Place) -> None:
    place.run([Text(0, ("x",))], keep=True, namespace="a")
    with pytest.raises(ValueError, match="exists already"):
        place.start([Text(0, ("x",))])
    for namespace in ("", "b"):
        with pytest.raises(ValueError, match="gone"):
            place.start([Text(0, ("x",))], resume=True, namespace=namespace)
    with pytest.raises(ValueError, match="gone"):
        place.start([Text(0, ("x",))], "never", resume=True)
    assert place.run([Text(0, ("y",))], resume=True, namespace="a").done.texts == {0: "xy"}


def test_prefixes_are_shared_within_a_namespace_only(place: Place) -> None:
    ops: list[Op] = [Text(0, ("the very same prompt",)), Gen(0, "g", GREEDY)]
    cached = [place.run(ops, namespace=name).done.usage.cached_tokens for name in ("a", "b", "a", "b")]
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) == len("the very same prompt") - 1
