"""Forms in which models write tool calls, the grammars of these calls, and descriptions of tools in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...constrain.spec import JsonSchema, Regex, Structural, Tag

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"


class CallForm(NamedTuple):
    """Form of a call: `before`, the name, `between`, the arguments as JSON, `after`; `trigger` is a prefix of `before`.

    Wherever `trigger` appears in a text, a call has begun.
    """

    trigger: str
    before: str
    between: str
    after: str

    def begin(self, name: str) -> str:
        """Returns the text before the arguments of a call of `name`."""
        return self.before + name + self.between

    def write(self, name: str, arguments: Any) -> str:
        """Returns the text of a call."""
        return self.begin(name) + json.dumps(arguments, ensure_ascii=False) + self.after


HERMES = CallForm("<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
MISTRAL = CallForm("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "', '", "arguments": ', "}]")
MISTRAL_ARGS = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "")
LLAMA = CallForm('{"name": "', '{"name": "', '", "parameters": ', "}")
PLAIN = CallForm('{"name": "', '{"name": "', '", "arguments": ', "}")
"""Form for models whose template shows no known one: `describe_tools` describes it to them."""


def find_form(template: str) -> CallForm | None:
    """Finds the form in which a chat template shows earlier calls; None if it is not one of those between marks."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    # Other models put something other than a JSON object with name and arguments between the same tags.
    if "<tool_call>" in template and "arguments" in template and not any(mark in template for mark in _NO_JSON):
        return HERMES
    return None


def own_form(template: str) -> CallForm | None:
    """Finds the form that a chat template teaches its model; None if it takes no tools, or the form is not known."""
    if "tools" not in template:
        return None
    return find_form(template) or (LLAMA if '{"name": function name, "parameters": ' in template else None)


_NO_JSON = ("<function=", "<arg_key>", "<parameter=")

Answer = JsonSchema | Regex

Arguments = Iterable[tuple[str, JsonSchema]]
"""Names of functions, with the schemas of their arguments."""


def calls_in_text(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Returns the grammar of any text whose calls are of the functions. Without `parallel` the first call ends it."""
    return Structural(_tags(form, functions), (form.trigger,), stop_after_first=not parallel)


def only_calls(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Returns the grammar of several calls, possibly on separate lines, or without `parallel`, of exactly one."""
    tags = _tags(form, functions)
    if parallel:
        tags += tuple(Tag("\n" + tag.begin, tag.content, tag.end) for tag in tags)
    return Structural(tags, at_least_one=True, stop_after_first=not parallel, free_text=False)


def call_or_answer(form: CallForm, functions: Arguments, answer: Answer) -> Structural:
    """Returns the grammar of exactly one call, or of a value instead."""
    tags = (*_tags(form, functions), Tag("", answer, ""))
    return Structural(tags, at_least_one=True, stop_after_first=True, free_text=False)


def no_calls(form: CallForm) -> Regex:
    """Returns the grammar of any text in which no call begins."""
    first, *others = map(_escaped, form.trigger)  # the first character of a trigger does not occur in it again
    rest = ""
    for char in reversed(others):
        on = f"{char}{rest}|" if rest else ""
        rest = f"(?:{on}[^{first}{char}][^{first}]*)?"
    return Regex(f"[^{first}]*(?:{first}{rest})*")


def _escaped(char: str) -> str:
    return char if char.isalnum() or char in ' "_<>:' else f"\\{char}"


def _tags(form: CallForm, functions: Arguments) -> tuple[Tag, ...]:
    return tuple(Tag(form.begin(name), arguments, form.after) for name, arguments in functions)


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Describes tools to a model whose chat template does not."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call these functions:\n"
        f"{listed}\n"
        "To call one, answer with nothing but a JSON object of this form:\n"
        '{"name": "the function\'s name", "arguments": {"a parameter": "its value"}}'
    )
