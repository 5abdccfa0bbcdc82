"""URIs, IRIs and templates of them (RFC 3986, 3987, 6570) as regular languages."""

from __future__ import annotations

from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole
from .hosts import ipv6

_BEYOND_ASCII = r"\xa0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
"""Of the planes that have characters."""

_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_UNRESERVED = "A-Za-z0-9._~!$&'()*+,;="
_ESCAPED = "%[0-9A-Fa-f]{2}"
_SCHEME = parse_whole("[A-Za-z][A-Za-z0-9+.-]*:")
_SLASH = Language.literal("/")


@cache
def uri(more: str = "", private: str = "") -> Language:
    """A `URI`: it has a scheme, and maybe a fragment. `more` may stand as it is, `private` too in a query."""
    return _SCHEME + (_rooted(more) | _rootless(":@", more) | Language.EPSILON) + _tail(more, private)


@cache
def uri_reference(more: str = "", private: str = "") -> Language:
    """A `URI-reference`: a URI or a relative reference."""
    paths = (_SCHEME.repeat(0, 1) + (_rooted(more) | Language.EPSILON)) | (_SCHEME + _rootless(":@", more))
    return (paths | _rootless("@", more)) + _tail(more, private)


def iri() -> Language:
    """An `IRI`."""
    return uri(_BEYOND_ASCII, _PRIVATE)


def iri_reference() -> Language:
    """An `IRI-reference`."""
    return uri_reference(_BEYOND_ASCII, _PRIVATE)


@cache
def uri_template() -> Language:
    """A `URI-Template`, without the operators that are reserved."""
    literal = rf"[!#$&'()*+,./:;=?@\[\]_~A-Za-z0-9{_BEYOND_ASCII}{_PRIVATE}-]|{_ESCAPED}"
    character = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = parse_whole(rf"{character}+(?:\.{character}+)*(?::[1-9][0-9]{{0,3}}|\*)?")
    variables = variable + (Language.literal(",") + variable).repeat(0)
    return (parse_whole(literal) | (parse_whole(r"\{[+#./;?&]?") + variables + Language.literal("}"))).repeat(0)


@cache
def _rooted(more: str) -> Language:
    """What begins with `/`: an authority with a path, or a path alone."""
    segment = _characters(":@", more)
    path = (_SLASH + segment.repeat(0)).repeat(0)
    address = ipv6() | parse_whole(r"[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+")
    host = (Language.literal("[") + address + Language.literal("]")) | _characters("", more).repeat(0)
    user = (_characters(":", more).repeat(0) + Language.literal("@")).repeat(0, 1)
    authority = Language.literal("//") + user + host + parse_whole("(?::[0-9]*)?")
    return (authority + path) | (_SLASH + (segment.repeat(1) + path).repeat(0, 1))


def _rootless(marks: str, more: str) -> Language:
    """A path that does not begin with `/`, and in whose first segment `marks` may stand."""
    return _characters(marks, more).repeat(1) + (_SLASH + _characters(":@", more).repeat(0)).repeat(0)


def _tail(more: str, private: str) -> Language:
    query = Language.literal("?") + _characters(":@/?", more + private).repeat(0)
    return query.repeat(0, 1) + (Language.literal("#") + _characters(":@/?", more).repeat(0)).repeat(0, 1)


@cache
def _characters(marks: str, more: str) -> Language:
    return parse_whole(f"[{_UNRESERVED}{marks}{more}-]|{_ESCAPED}")
