"""The best possible hit rate, against a brute-force search over all orders of requests."""

import itertools
import random

import pytest

from bough.benchmarks.harness.measure import Sent, fewest_computed, sent_requests
from bough.runtime.protocol.program import Fork, Gen, Join, Piece, Select, Text, Value
from bough.runtime.protocol.request import PREFILLED, SAMPLED, Usage


def computed_in_order(requests):
    """An unlimited cache of single tokens: what these requests compute as prompts, in this order."""
    cached, computed = set(), 0
    for request in requests:
        prefixes = [request.tokens[: length + 1] for length in range(len(request.tokens))]
        num_found = next((i for i, prefix in enumerate(prefixes) if prefix not in cached), len(prefixes))
        computed += request.num_prompt - min(num_found, request.num_matchable)
        cached.update(prefixes)
    return computed


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_requests_computes_less_and_one_computes_as_much(seed):
    draw = random.Random(seed)
    requests = []
    for _ in range(draw.randint(1, 5)):
        tokens = tuple(draw.choices("ab", k=draw.randint(1, 5)))
        requests.append(Sent(tokens, len(tokens), len(tokens) - 1))
    best = min(computed_in_order(order) for order in itertools.permutations(requests))
    assert fewest_computed(requests) == best


def test_generated_tokens_are_found_by_the_next_turn():
    first = Sent(("q", "a", "b"), num_prompt=1, num_matchable=0)  # answers a b c; c itself was not computed
    second = Sent(("q", "a", "b", "c", "r"), num_prompt=5, num_matchable=4)
    assert fewest_computed([first, second]) == computed_in_order([first, second]) == 1 + 2


def test_the_requests_of_a_program_are_those_it_sends():
    ops = (Text(0, ("x y",)), Fork(0, (1, 2)), Gen(1, "g"), Select(2, "s", ("p q", "r")), Text(2, ("z",)), Gen(2, "h"))
    pieces = (
        Piece(branch=0, op=0, kind="text", texts=("x", "y"), origins=(PREFILLED,) * 2),
        Piece(branch=1, op=0, kind="gen", name="g", texts=("1", "2"), origins=(SAMPLED,) * 2),
        Piece(branch=2, op=0, kind="select", name="s", texts=("r",), origins=(SAMPLED,)),
        Piece(branch=2, op=1, kind="text", texts=("z",), origins=(PREFILLED,)),
        Piece(branch=2, op=2, kind="gen", name="h", texts=("3",), origins=(SAMPLED,)),
    )
    values = [
        Value(branch=1, name="g", text="12", usage=Usage(completion_tokens=2)),
        Value(branch=2, name="h", text="3", usage=Usage(completion_tokens=2)),  # a stop followed
    ]
    assert sent_requests(ops, pieces, values, str.split) == [
        Sent(("x", "y", "1"), 2, 1),
        Sent(("x", "y", "p", "q"), 4, 1),
        Sent(("x", "y", "r"), 3, 1),
        Sent(("x", "y", "r", "z", "3"), 4, 3),
    ]


def test_joining_by_appending_is_refused():
    with pytest.raises(ValueError, match="joins by appending"):
        sent_requests((Fork(0, (1,)), Join(0, (1,), "append")), (), (), str.split)
