"""The forms in which models write calls of tools, and what they are constrained to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...constrain.spec import JsonSchema, Structural, Tag


class CallForm(NamedTuple):
    """A call is `before`, the name, `between`, the arguments as JSON, `after`; `trigger` is how `before` begins.

    Where `trigger` appears in a text, a call has begun.
    """

    trigger: str
    before: str
    between: str
    after: str

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call of `name`."""
        return self.before + name + self.between


HERMES = CallForm("<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
MISTRAL = CallForm("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "', '", "arguments": ', "}]")
MISTRAL_ARGS = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "")


def find_form(template: str) -> CallForm | None:
    """The form that a chat template shows earlier calls in; None if it is none of those known here."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    # Other models put something else than a JSON object with name and arguments between the same tags.
    if "<tool_call>" in template and "arguments" in template and not any(mark in template for mark in _NO_JSON):
        return HERMES
    return None


_NO_JSON = ("<function=", "<arg_key>", "<parameter=")

Arguments = Iterable[tuple[str, JsonSchema]]
"""Names of functions, and what their arguments must be."""


def calls_in_text(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Any text, in which each call is one of the functions'. Without `parallel` the first call ends it."""
    return Structural(_tags(form, functions), (form.trigger,), stop_after_first=not parallel)


def only_calls(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Calls, one after another, perhaps on lines of their own; or exactly one."""
    tags = _tags(form, functions)
    if parallel:
        tags += tuple(Tag("\n" + tag.begin, tag.content, tag.end) for tag in tags)
    return Structural(tags, at_least_one=True, stop_after_first=not parallel, free_text=False)


def call_or_answer(form: CallForm, functions: Arguments, answer: JsonSchema) -> Structural:
    """Exactly one call, or a value instead."""
    tags = (*_tags(form, functions), Tag("", answer, ""))
    return Structural(tags, at_least_one=True, stop_after_first=True, free_text=False)


def _tags(form: CallForm, functions: Arguments) -> tuple[Tag, ...]:
    return tuple(Tag(form.begin(name), arguments, form.after) for name, arguments in functions)
