"""Programs that the tests of an API send."""

from __future__ import annotations

from typing import Any

from bough.lang.api import assistant, function, gen, system, user


@function
def capital(s: Any, country: str) -> None:
    s += system("Be brief.")
    s += user(f"The capital of {country}?")
    s += assistant(gen("city", max_tokens=8, stop=[".", "\n"]))


@function
def completed(s: Any) -> None:
    s += "One, two," + gen("next", max_tokens=4) + " and" + gen("last", stop="!")
