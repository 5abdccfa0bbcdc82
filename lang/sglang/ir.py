"""Patterns for `regex=` under the names that SGLang's programs import: what JSON can hold of each type.

After a number may stand one space or line break, for programs that stop there. `dtype=` needs neither.
"""

from __future__ import annotations

from ..types.schema import INTEGER, NUMBER

REGEX_INT = INTEGER + r"[ \n]?"
REGEX_FLOAT = NUMBER + r"[ \n]?"
REGEX_BOOL = "True|False"
REGEX_STR = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
