"""Our side of a comparison on programs: functions of the language, `run_batch`, an engine in the same process."""

from __future__ import annotations

import time
from typing import Any

from ....lang.api import (
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    system_begin,
    system_end,
    user_begin,
    user_end,
)
from ....lang.backends.local import LocalBackend
from ....lang.record.choices import token_length_normalized
from ....lang.record.expression import Expression
from ....lang.state.state import State
from .peer_program_walk import Plan

_BEGIN = {"system": system_begin, "user": user_begin, "assistant": assistant_begin}
_END = {"system": system_end, "user": user_end, "assistant": assistant_end}


@function
def replay(s: State, plan: Plan) -> dict[int, State]:
    """Says what a plan says, as a program by hand would; nothing is read, so that it is one request. Its branches."""
    states: dict[int, State] = {0: s}
    roles: dict[int, str] = {}
    groups: dict[tuple[int, ...], Any] = {}
    for op in plan:
        kind, branch = op[0], op[1]
        state = states[branch]
        if kind == "text":
            for part in op[2]:
                state += part if isinstance(part, str) else states[part[0]].ref(part[1])
        elif kind in ("gen", "select"):
            state += _value(op)
        elif kind == "role":
            roles[branch] = op[2]
            state += _BEGIN[op[2]]()
        elif kind == "end":
            state += _END[roles[branch]]()
        elif kind == "fork":
            group = groups[tuple(op[2])] = state.fork(len(op[2]))
            for child, forked in zip(op[2], group, strict=True):
                states[child] = forked
        elif kind == "join":
            groups[tuple(op[2])].join()
    return states


def _value(op: list[Any]) -> Expression:
    if op[0] == "select":
        return select(op[2], choices=op[3], choices_method=token_length_normalized)
    _, _, name, num_tokens, pattern = op
    if pattern is not None:
        return gen(name, max_tokens=num_tokens, regex=pattern, temperature=0)
    return gen(name, max_tokens=num_tokens, temperature=0, ignore_eos=True)


class BoughClient:
    """`options`: model, and fields of EngineConfig as "settings". Threads are as many as OMP_NUM_THREADS says."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._backend = LocalBackend(options["model"], **options["settings"])

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        started = time.perf_counter()
        if at_once == 1:
            states = [replay.run(plan, backend=self._backend) for plan in plans]
        else:
            states = replay.run_batch([(plan,) for plan in plans], backend=self._backend)
        programs = [_texts(plan, state.ret_value) for plan, state in zip(plans, states, strict=True)]
        return {"seconds": time.perf_counter() - started, "programs": programs}


def _texts(plan: Plan, states: dict[int, State]) -> list[list[Any]]:
    return [
        [op[1], op[2], str(states[op[1]][op[2]]), states[op[1]].get_meta_info(op[2]).get("completion_tokens")]
        for op in plan
        if op[0] in ("gen", "select")
    ]


def load(options: dict[str, Any], beside: object) -> BoughClient:
    return BoughClient(options)
