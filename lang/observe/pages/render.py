"""Renders the templates of this folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

MAX_FRAME_CHARS = 4_000_000
_SECONDS_SHORT = 0.001
_MARKED = str.maketrans({"\n": "<u>↵</u>\n", "\r": "<u>␍</u>", "\t": "<u>→</u>\t"})


def render(template: str, **values: Any) -> str:
    """Returns a template of this folder, filled. What is put into it is escaped."""
    return _environment().get_template(template).render(values)


def framed(page: str, text: str, what: str) -> str:
    """Returns a whole page inside another, on which it can do nothing; too large a one is shown as `text`."""
    return render("frame.html", page=page, text=text, what=what, fits=len(page) <= MAX_FRAME_CHARS)


def duration(seconds: float) -> str:
    """Returns a time with its unit: µs, ms or s."""
    if seconds == 0:
        return "0"
    if seconds < _SECONDS_SHORT:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def count(number: str | int | float, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: "1 token", "2 tokens"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415  once somebody looks
    import markupsafe  # noqa: PLC0415  as above

    @functools.lru_cache(maxsize=8192)  # the texts of tokens repeat
    def marked(text: str) -> markupsafe.Markup:
        """A token, with the white space that it is made of to be seen."""
        return markupsafe.Markup(str(markupsafe.escape(text or "∅")).translate(_MARKED))

    def verbatim(name: str) -> markupsafe.Markup:
        return markupsafe.Markup("\n" + _read(name))

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_source)
    )
    filters: dict[str, Callable[..., Any]] = {
        "thousands": "{:,}".format,
        "count": count,
        "duration": duration,
        "marked": marked,
        "verbatim": verbatim,
    }
    environment.filters.update(filters)
    return environment


def _source(name: str) -> str:
    """A template without the white space that lays it out in lines, which a message would show."""
    return "".join(map(str.strip, _read(name).splitlines()))


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
