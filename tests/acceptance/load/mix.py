"""Requests and programs of all kinds, numbered, and with what those are answered that are wrong."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from bough.runtime.protocol.condition import Compare
from bough.runtime.protocol.program import Fork, Gen, Join, Op, Ref, Repeat, Select, Text, Use, When
from bough.runtime.protocol.sampling_params import SamplingParams

from ...runtime.programs.oracle import random_program

MOST_TOKENS = 200
"""Prompt and answer of the largest request."""

STEMS = ("system: be brief. ", "system: be kind. ", "few shot: a b c. ", "")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["knight", "mage"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
PATTERN = "[0-9]{3}-[a-c]{2,8}"
CHOICES = ["yes, certainly", "yes, perhaps", "no"]
FAMILIES = {"greedy": 40, "sampled": 10, "schema": 10, "regex": 3, "several": 5, "scored": 4, "stops": 3}
"""Shares of what is answered in full, by weight."""

TOOLS = '''
import bough


@bough.tool
def upper(text: str) -> str:
    """Shouts."""
    return text[:8].upper() + "!"
'''


@dataclass(frozen=True)
class Ask:
    """A request: where it goes, and its body without `stream`."""

    family: str
    path: str
    body: dict[str, Any]


def make_ask(index: int) -> Ask:
    """The `index`-th request, the same each time."""
    rng = random.Random(index)
    text = rng.choice(STEMS) + " ".join(rng.choice(("tell", "me", "of", "it")) for _ in range(rng.randrange(1, 12)))
    (family,) = rng.choices(list(FAMILIES), list(FAMILIES.values()))
    body: dict[str, Any] = {"max_tokens": rng.randrange(1, 110), "temperature": 0}
    chat = rng.random() < 0.4
    match family:
        case "greedy":
            body |= {"ignore_eos": rng.random() < 0.5}
        case "sampled":
            body |= rng.choice(
                (
                    {"temperature": 0.9, "top_p": 0.8},
                    {"temperature": 1.3, "top_k": 20, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
                    {"temperature": 0.7, "min_p": 0.02, "presence_penalty": 0.4, "logit_bias": {"65": 5.0}},
                )
            )
            body |= {"seed": index}
        case "schema":
            form = {"type": "json_schema", "json_schema": {"name": "v", "schema": _varied(rng)}}
            body |= {"response_format": form, "temperature": 1.1, "seed": index, "max_tokens": 90}
        case "regex":
            limits = ({"regex": PATTERN}, {"structured_outputs": {"choice": CHOICES}}, {"guided_regex": "(ab|c)*x"})
            body |= {**rng.choice(limits), "temperature": 1.2, "seed": index}
        case "several":
            body |= {"n": rng.randrange(2, 9), "temperature": 1.0, "seed": index, "max_tokens": rng.randrange(1, 25)}
        case "scored":
            chat = False
            body |= {"logprobs": rng.randrange(0, 4), "echo": rng.random() < 0.5, "max_tokens": rng.randrange(1, 40)}
        case "stops":
            body |= {"stop": rng.choice((["e"], ["tt", "a "], ["abcdefghijkl", "\n"]))}
    if chat:
        return Ask(family, "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]})
    return Ask(family, "/v1/completions", body | {"prompt": text})


def _varied(rng: random.Random) -> dict[str, Any]:
    """One of 40 schemas, whose ends come within the tokens that a request has."""
    number = rng.randrange(40)
    return SCHEMA | {"properties": SCHEMA["properties"] | {"kind": {"enum": ["knight", f"mage {number}"]}}}  # type: ignore[operator]


def _text(**fields: Any) -> Ask:
    return Ask("bad", "/v1/completions", {"prompt": "hello", "max_tokens": 5, **fields})


def _schema(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}}}


BAD: tuple[tuple[Ask, int, str | None], ...] = (
    (_text(prompt="x" * 600), 400, "context_length_exceeded"),
    (_text(prompt="x" * 400, max_tokens=100), 400, "context_length_exceeded"),
    (_text(max_tokens=MOST_TOKENS * 4), 400, "context_length_exceeded"),
    (_text(**_schema({"type": "no such type"})), 400, None),
    (_text(**_schema({"$ref": "#/nowhere"})), 400, None),
    (_text(**_schema(7)), 400, None),
    (_text(regex="("), 400, None),
    (_text(stop_regex="a*"), 400, None),
    (_text(temperature=3), 400, "decimal_above_max_value"),
    (_text(top_p=0), 400, None),
    (_text(n="two"), 400, "invalid_type"),
    (_text(prompt=[999_999]), 400, "invalid_token_id"),
    (_text(prompt=[]), 400, None),
    (_text(model="another"), 404, "model_not_found"),
    (Ask("bad", "/v1/chat/completions", {"messages": []}), 400, None),
    (Ask("bad", "/v1/nowhere", {}), 404, "unknown_url"),
    (Ask("bad", "/v1/programs", {"id": "bad", "ops": [{"type": "no such"}]}), 400, None),
    (Ask("bad", "/v1/programs", {"id": "", "ops": []}), 400, "invalid_value"),
)
"""Requests that are refused, each with the status and, if it is always the same, the code."""


def make_program(index: int) -> list[list[Op]]:
    """The `index`-th program, the same each time, as one or more submissions of a state that is kept between them."""
    short = SamplingParams(max_tokens=6, temperature=0.0)
    match index % 4:
        case 0:
            sampled = SamplingParams(max_tokens=8, temperature=0.9, n=3, seed=index)
            return [
                [
                    Text(0, (f"program {index}: ",)),
                    Gen(0, "ideas", sampled),
                    Fork(0, (1, 2)),
                    Gen(1, "a", short),
                    Use(1, "loud", "upper", (("text", (Ref(1, "a"),)),)),
                    Text(2, ("and ", Ref(1, "loud"))),
                    Select(2, "b", ("yes", "no", "perhaps")),
                    Join(0, (1, 2), "append"),
                    Gen(0, "end", short),
                ]
            ]
        case 1:
            turn = (Gen(0, "guess", short), Use(0, "told", "upper", (("text", (Ref(0, "guess"),)),)))
            return [
                [
                    Text(0, (f"loop {index}: ",)),
                    Repeat(0, turn, Compare(Ref(0, "told"), "contains", "A"), 3),
                    When(0, Compare(Ref(0, "told"), "contains", "E"), (Gen(0, "more", short),), ()),
                ]
            ]
        case 2:
            first: list[Op] = [
                Text(0, (f"kept {index}: ",)),
                Gen(0, "one", short),
                Fork(0, (1,)),
                Gen(1, "side", short),
            ]
            return [first, [Gen(0, "two", short), Text(1, ("then ",)), Gen(1, "three", short)]]
        case _:
            return [random_program(index, 14)]


def submission(ops: list[Op], name: str, *, keep: bool, resume: bool) -> bytes:
    """The body that runs `ops`."""
    body = {"id": name, "ops": ops, "keep": keep, "resume": resume, "deltas": False}
    return msgspec.json.encode(body)


def body_of(ask: Ask, **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", **ask.body, **fields}).encode()
