"""Gaps in a text: how a model with control tokens for them is asked, and that others refuse."""

from __future__ import annotations

from typing import Any

import pytest

from bough.server.errors import ApiError
from bough.server.openai.infill import FORMS, find_infill
from bough.server.openai.objects import CompletionBody
from bough.server.openai.requests import Context, Job, completion_job

from ..fake_client import INFO, ByteTokenizer


class Marked(ByteTokenizer):
    """Has control tokens of the given texts, from 300 on."""

    def __init__(self, *marks: str) -> None:
        super().__init__()
        self._marks = {mark: 300 + index for index, mark in enumerate(marks)}
        self.special_ids = frozenset(self._marks.values())

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids, rest = list[int](), text
        while rest:
            mark = next((mark for mark in self._marks if special and rest.startswith(mark)), None)
            ids += list(rest[0].encode()) if mark is None else [self._marks[mark]]
            rest = rest[1:] if mark is None else rest[len(mark) :]
        return ids

    encode_prompt = encode


def job(tokenizer: Any, **fields: Any) -> Job:
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)
    return completion_job(CompletionBody(model="m", **fields), context)


@pytest.mark.parametrize("form", FORMS)
def test_a_suffix_stands_between_the_marks_of_the_model(form: Any) -> None:
    tokenizer: Any = Marked(*form)
    assert find_infill(tokenizer) == form
    assert job(tokenizer, prompt="ab", suffix="c").prompts == ((300, 97, 98, 301, 99, 302),)
    assert job(tokenizer, prompt=["a", "b"], suffix="c").prompts == ((300, 97, 301, 99, 302), (300, 98, 301, 99, 302))
    assert job(tokenizer, prompt="ab", suffix="").prompts == ((97, 98),)


@pytest.mark.parametrize(
    ("tokenizer", "fields"),
    [
        (ByteTokenizer(), {"prompt": "ab"}),
        (Marked(*FORMS[0][:2]), {"prompt": "ab"}),
        (Marked(*FORMS[0]), {"prompt": [97, 98]}),
        (Marked(*FORMS[0]), {"prompt": "ab", "echo": True}),
    ],
    ids=["no marks", "one is missing", "token ids", "echo"],
)
def test_a_suffix_that_cannot_be_told_is_refused(tokenizer: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        job(tokenizer, suffix="c", **fields)
    assert (caught.value.status, caught.value.param) == (400, "suffix")
