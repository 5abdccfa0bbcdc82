"""Docstrings as the site shows them: what is laid out for readers of the source becomes Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

TERM = re.compile(r"(?P<terms>[A-Za-z_][\w.]*(?:, [A-Za-z_][\w.]*)*)  +(?P<text>\S.*)")
INNER = re.compile(r"\b(?:_[A-Z]\w*|MAX_\w+)")


class Laid(griffe.Extension):
    """Rewrites the docstring of each object when it is loaded, and adds to those of classes their fields."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
        if isinstance(obj, griffe.Class) and (listed := fields(obj)):
            told = obj.docstring.value + "\n\n" if obj.docstring is not None else ""
            obj.docstring = griffe.Docstring(f"{told}```python\n{listed}\n```", parent=obj)


def markdown(text: str) -> str:
    """A docstring's paragraphs: columns of terms and meanings become lists, and examples blocks of code."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in text.split("\n\n"))


def fields(kind: griffe.Class) -> str:
    """The fields of a class that is made of its annotations, such as a struct; dataclasses have their signature."""
    if "dataclass" in kind.labels or "__init__" in kind.members:
        return ""
    found = (member for name, member in kind.members.items() if isinstance(member, griffe.Attribute) and name[0] != "_")
    return "\n".join(_field(one) for one in found if one.annotation is not None and "property" not in one.labels)


def _field(one: griffe.Attribute) -> str:
    """Names of the module's own that a reader could not look up are written out."""
    known = one.module.members

    def meant(name: re.Match[str]) -> str:
        member = known.get(name[0])
        return str(member.value) if isinstance(member, griffe.Attribute) and member.value is not None else name[0]

    text = f"{one.name}: {one.annotation}" + (f" = {one.value}" if one.value is not None else "")
    return INNER.sub(meant, INNER.sub(meant, text))  # one may be made of another


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if text.startswith(">>>"):
        return "\n".join(("```pycon", *lines, "```"))
    start = next((index for index, line in enumerate(lines) if TERM.fullmatch(line)), None)
    if start is None or not all(TERM.fullmatch(line) or line.startswith("  ") for line in lines[start:]):
        return text
    entries = [_entry(line) for line in lines[start:]]
    return "\n".join((*lines[:start], "", *entries) if start else entries)


def _entry(line: str) -> str:
    found = TERM.fullmatch(line)
    if found is None:  # goes on with the entry above
        return f"    {line.strip()}"
    terms = ", ".join(f"`{term}`" for term in found["terms"].split(", "))
    return f"- {terms}: {found['text']}"
