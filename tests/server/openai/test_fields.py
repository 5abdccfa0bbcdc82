"""Fields of all engines whose clients may come: each is honoured or refused by its name, and none is dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bough.server.openai.fields import IGNORED, REFUSED
from bough.server.openai.objects import ChatBody, CompletionBody, GenerationBody

from ..conftest import Running

HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[type[GenerationBody], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {"model": "m", "messages": HI}),
    "/v1/completions": (CompletionBody, {"model": "m", "prompt": "hi"}),
}


def another(neutral: Sequence[Any]) -> Any:
    """A value of the kind of the neutral ones that is none of them."""
    first = next((value for value in neutral if value is not None), 7)
    if isinstance(first, bool):
        return "x" if len(neutral) > 1 else not first
    if isinstance(first, int):
        return 0.5
    return ["x"] if isinstance(first, list) else 7


def server_counts(server: Running) -> str:
    """The line of the unknown fields in the server's metrics."""
    lines = server.http().get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("bough_unknown_fields_total"))


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_that_is_not_supported_may_have_its_neutral_values(server: Running, path: str) -> None:
    kind, plain = ROUTES[path]
    http, wrong = server.http(), list[str]()
    unknown = server_counts(server)
    for name in sorted(REFUSED.keys() - set(kind.__struct_fields__)):
        for value in (None, *REFUSED[name]):
            response = http.post(path, json={**plain, name: value})
            if response.status_code != 200:
                wrong.append(f"{name}={value}: {response.text}")
        response = http.post(path, json={**plain, name: another(REFUSED[name])})
        error = response.json().get("error", {})
        if (response.status_code, error.get("code"), error.get("param")) != (400, "unsupported_parameter", name):
            wrong.append(f"{name}={another(REFUSED[name])}: {response.text}")
    assert wrong == []
    assert server_counts(server) == unknown


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", True), ("mirostat", False), ("xtc_probability", "0"), ("dry_multiplier", 1e-9), ("do_sample", 1)],
)
def test_a_neutral_value_has_its_type(server: Running, name: str, value: Any) -> None:
    for path, (_, plain) in ROUTES.items():
        response = server.http().post(path, json={**plain, name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_a_refusal_says_which_value_has_no_effect(server: Running) -> None:
    response = server.http().post("/v1/completions", json={"model": "m", "prompt": "hi", "top_n_sigma": 2})
    assert "except with the value -1 or 0" in response.json()["error"]["message"]
    long = json.dumps({"model": "m", "prompt": "hi", "adapter": "x" * 100_000})
    headers = {"content-type": "application/json"}
    response = server.http().post("/v1/completions", content=long, headers=headers)
    assert (response.status_code, len(response.content) < 300) == (400, True)


def test_no_field_is_both_ignored_and_refused() -> None:
    assert IGNORED.isdisjoint(REFUSED)
    for kind, _ in ROUTES.values():
        assert IGNORED.isdisjoint(kind.__struct_fields__)


def test_more_candidates_than_choices_are_refused_on_both_routes(server: Running) -> None:
    for path, (_, plain) in ROUTES.items():
        response = server.http().post(path, json={**plain, "n": 2, "best_of": 3})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "best_of")
        assert server.http().post(path, json={**plain, "n": 2, "best_of": 2}).status_code == 200
