"""The values of `format` that are enforced, as regular languages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .language import Language
from .patterns import parse_whole

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    "(?:(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_DAY_PART = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
_TIME_PART = "T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"


@cache
def date() -> Language:
    """`full-date`, without the year 0, which many readers do not have."""
    return parse_whole(_DATE)


@cache
def time() -> Language:
    """`full-time`; a second 60 only in the last minute of a day in UTC."""
    ordinary = parse_whole(f"{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})")
    return ordinary | _leap_seconds()


@cache
def date_time() -> Language:
    """`date-time`."""
    return date() + parse_whole("[Tt]") + time()


@cache
def duration() -> Language:
    """`duration` of appendix A."""
    return parse_whole(f"P(?:[0-9]+W|{_DAY_PART}(?:{_TIME_PART})?|{_TIME_PART})")


def _leap_seconds() -> Language:
    """The times that an offset, of whole or of half hours, takes to 23:59:60."""
    fraction = parse_whole(_FRACTION)
    found = [parse_whole(f"23:59:60{_FRACTION}[Zz]")]
    for offset in range(24):
        for start, end in (
            (f"{(23 + offset) % 24:02}:59", f"+{offset:02}:00"),
            (f"{offset:02}:29", f"+{offset:02}:30"),
            (f"{23 - offset:02}:59", f"-{offset:02}:00"),
            (f"{23 - offset:02}:29", f"-{offset:02}:30"),
        ):
            found.append(Language.literal(f"{start}:60") + fraction + Language.literal(end))
    return Language.union(found)


_AT, _DOT = Language.literal("@"), Language.literal(".")
_LONG, _SHORT = 63, 30
"""Longest label, in characters; names have at most 253."""

_TEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r"[ !#-\[\]-~]|\\[ -~]"
_BEYOND_ASCII = r"\x80-\u{10ffff}"
_LETTER = r"[A-Za-z0-9\xc0-\u1fff\u3005-\ud7a3]"


@cache
def ipv4() -> Language:
    """Four numbers without leading zeros."""
    octet = parse_whole("25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9]")
    return (octet + Language.literal(".")).repeat(3, 3) + octet


@cache
def ipv6(most: int = 7) -> Language:
    """All forms of RFC 4291, without a zone; at most `most` groups stand beside a `::`."""
    group, colon = parse_whole("[0-9A-Fa-f]{1,4}"), Language.literal(":")
    last, then = (group + colon + group) | ipv4(), group + colon
    forms = [then.repeat(6, 6) + last]
    for before in range(most + 1):
        left = group + (colon + group).repeat(before - 1, before - 1) if before else Language.EPSILON
        after = [Language.EPSILON, group] if most > before else [Language.EPSILON]
        if most - before >= 2:
            after.append(then.repeat(0, most - before - 2) + last)
        forms.append(left + colon + colon + Language.union(after))
    return Language.union(forms)


@cache
def hostname() -> Language:
    """Names of RFC 1123, but for labels in Punycode: only decoding them says whether they are right."""
    return names(_plain_label)


@cache
def email() -> Language:
    """A `Mailbox` of RFC 5321."""
    many, few = rf"{_TEXT}(?:\.?{_TEXT}){{0,31}}", rf"{_TEXT}{{1,31}}\.{_TEXT}{{1,32}}|{_TEXT}{{1,64}}"
    local = parse_whole(rf'{many}|{few}|"(?:{_QUOTED}){{0,31}}"')
    literal = Language.literal("[") + (ipv4() | (Language.literal("IPv6:") + ipv6(6))) + Language.literal("]")
    return local + _AT + (names(_label) | literal)


@cache
def idn_email() -> Language:
    """Mailboxes of RFC 6531; where not ASCII they are short, as the limits are in bytes."""
    text = f"(?:{_TEXT}|[{_BEYOND_ASCII}])"
    local = parse_whole(rf'{text}(?:\.?{text}){{0,12}}|"(?:{_QUOTED}|[{_BEYOND_ASCII}]){{0,15}}"')
    domain = parse_whole(rf"{_LETTER}(?:[.-]?{_LETTER}){{0,15}}")
    return email() | (local + _AT + (names(_label) | domain))


def names(label: Callable[[int], Language]) -> Language:
    """Names of up to four labels, or of up to eight that are shorter: by counting characters masks would be slow."""
    few = (label(_LONG) + _DOT).repeat(0, 2) + (label(_LONG) | (label(_LONG) + _DOT + label(_LONG - 2)))
    return few | ((label(_SHORT) + _DOT).repeat(0, 7) + label(_SHORT))


@cache
def _label(longest: int) -> Language:
    """A label of at most so many letters, digits and inner hyphens."""
    return parse_whole(f"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?")


@cache
def _plain_label(longest: int) -> Language:
    """A label that does not begin with `xn--`."""
    after = [f"(?:[A-Za-z0-9-]{{0,{longest - length - 1}}}[A-Za-z0-9])" for length in range(5)]
    text = f"[A-WYZa-wyz0-9]{after[1]}?"
    text += f"|[Xx](?:[A-Za-z0-9]|[A-MO-Za-mo-z0-9-]{after[2]}"
    text += f"|[Nn](?:[A-Za-z0-9]{after[3]}?|-[A-Za-z0-9]{after[4]}?))?"
    return parse_whole(text)


@cache
def unreserved_label(longest: int) -> Language:
    """A label without hyphens in its third and fourth place."""
    text = f"[A-Za-z0-9-](?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 4}}}[A-Za-z0-9])?"
    text += f"|-[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 5}}}[A-Za-z0-9])?)"
    return parse_whole(f"[A-Za-z0-9](?:[A-Za-z0-9]|{text})?")


LONGEST_LABEL = 13
"""A label of so many characters is shorter than 63 in Punycode, and a name of four of them shorter than 254."""

_LEFT = (
    r"a-z\xdf-\xf6\xf8-\xff\u03ac-\u03ce\u0430-\u045f\u0561-\u0586\u0904-\u0939\u0985-\u098c\u0e01-\u0e30\u0e32"
    r"\u0e40-\u0e46\u0f0b\u10d0-\u10fa\u3005-\u3007\u3041-\u3096\u309d\u309e\u30a1-\u30fa\u30fc-\u30fe"
    r"\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
)
"""Letters, written from the left, that are allowed in every place."""

_MARKS = r"\u0900-\u0903\u093a-\u093c\u093e-\u094d\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
_DIGITS = r"0-9\u06f0-\u06f9"
_HEBREW = r"\u05d0-\u05ea"
_RIGHT = rf"{_HEBREW}\u0620-\u063f\u0641-\u064a\u0671-\u0674\u0679-\u06d3\u06fd\u06fe"
_RIGHT_MARKS = r"\u064b-\u065f"
_KANA_OR_HAN = r"\u3041-\u3096\u30a1-\u30fa\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff"

_JOINED = r"\u094d[\u200c\u200d][\u0904-\u0939]"
_BETWEEN = r"l\xb7l|[\u03ac-\u03ce]\u0375[\u03ac-\u03ce]"
"""Characters allowed only beside certain others (joiners, the middle dot, the keraia), with those others."""

_DOTS = r"[.\u3002\uff0e\uff61]"


@cache
def idn_hostname() -> Language:
    """Names in which each label is ASCII or a U-label; narrower than the standard in length and in alphabets."""
    latin = parse_whole("[a-z](?:-?[a-z0-9])*")
    return names(unreserved_label) | _name(_left_label()) | _name(_right_label() | latin)


def _name(label: Language) -> Language:
    short = label & Language.length(1, LONGEST_LABEL)
    return short + (parse_whole(_DOTS) + short).repeat(0, 3)


def _left_label() -> Language:
    """A label without letters written from the right."""
    first = rf"(?:[{_LEFT}{_DIGITS}]|{_BETWEEN})"
    part = rf"(?:[{_LEFT}{_DIGITS}{_MARKS}]|{_BETWEEN}|{_JOINED})"
    japanese = rf"[\u30fb{_LEFT}]*[{_KANA_OR_HAN}][\u30fb{_LEFT}]*"
    return parse_whole(rf"{first}{part}*(?:-{first}{part}*)*|{japanese}")


def _right_label() -> Language:
    """A label of Hebrew or Arabic letters; digits are of one kind. No label beside it may begin with a digit."""
    letter = rf"(?:[{_RIGHT}{_RIGHT_MARKS}]|[{_HEBREW}][\u05f3\u05f4])"
    labels = [
        parse_whole(rf"(?:[{_RIGHT}]|[{_HEBREW}][\u05f3\u05f4])(?:{letter}|[{digits}]|-[{_RIGHT}{digits}])*")
        for digits in (_DIGITS, r"\u0660-\u0669")
    ]
    return Language.union(labels)


_UCSCHAR = r"\xa0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
"""Ranges of the planes that have characters."""

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
    return uri(_UCSCHAR, _PRIVATE)


def iri_reference() -> Language:
    """An `IRI-reference`."""
    return uri_reference(_UCSCHAR, _PRIVATE)


@cache
def uri_template() -> Language:
    """A `URI-Template`, without the operators that are reserved."""
    literal = rf"[!#$&'()*+,./:;=?@\[\]_~A-Za-z0-9{_UCSCHAR}{_PRIVATE}-]|{_ESCAPED}"
    character = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = parse_whole(rf"{character}+(?:\.{character}+)*(?::[1-9][0-9]{{0,3}}|\*)?")
    variables = variable + (Language.literal(",") + variable).repeat(0)
    return (parse_whole(literal) | (parse_whole(r"\{[+#./;?&]?") + variables + Language.literal("}"))).repeat(0)


@cache
def _rooted(more: str) -> Language:
    """Returns the part of a URI that begins with `/`: an authority with a path, or a path alone."""
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


MAX_GROUPS = 2
"""Limit of the depth of groups."""

_NAME = "[A-Za-z_$][A-Za-z0-9_$]*"
_ESCAPE = r"\\(?:[dDwWsStnvfr^$\\.*+?()\[\]{}|/]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
_ASSERTION = r"[\^$|]|\\[bB]"


@cache
def regex() -> Language:
    """Expressions that are valid with and without the flag `u`, with one named group at most and without references."""
    atom = parse_whole(rf"[^\^$\\.*+?()\[\]{{}}|]|\.|{_ESCAPE}") | _class()
    repeats = parse_whole(rf"(?:(?:[*+?]|{_counts()})\??)?")
    flat = ((atom + repeats) | parse_whole(_ASSERTION)).repeat(0)
    others = parse_whole(_ASSERTION) | (parse_whole(r"\(\?<?[=!]") + flat + Language.literal(")"))
    level = flat
    for _ in range(MAX_GROUPS):
        group = parse_whole(r"\((?:\?:)?") + level + Language.literal(")")
        level = (((atom | group) + repeats) | others).repeat(0)
    named = parse_whole(rf"\(\?<{_NAME}>") + flat + Language.literal(")") + repeats
    return level + (named + level).repeat(0, 1)


def _counts() -> str:
    """Numbers of repeats: the second is not less than the first."""
    ones = [f"{low}(?:,(?:[{low}-9]|[1-9][0-9])?)?" for low in range(10)]
    tens = [f"{low}[0-9](?:,(?:[{low + 1}-9][0-9])?)?" for low in range(1, 9)]
    return rf"\{{(?:{'|'.join([*ones, *tens, '9[0-9],?', '[1-9][0-9]{2},?'])})\}}"


def _class() -> Language:
    """A class of characters: its ranges go upwards."""
    ranges = [f"{low}-[{low}-9]" for low in range(10)] + ["a-[a-z]", "A-[A-Z]"]
    member = parse_whole(rf"[^\\\]\[-]|{_ESCAPE}|\\[b-]|{'|'.join(ranges)}")
    return parse_whole(r"\[\^?-?") + member.repeat(0) + parse_whole(r"-?\]")


def _pattern(text: str) -> Callable[[], Language]:
    return lambda: parse_whole(text)


_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_FORMATS: dict[str, tuple[Callable[[], Language], str]] = {
    "color": (_pattern("#(?:[0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})"), "#000"),
    "date": (date, "2000-01-01"),
    "date-time": (date_time, "2000-01-01T00:00:00Z"),
    "duration": (duration, "P1D"),
    "email": (email, "a@b.c"),
    "hostname": (hostname, "a"),
    "idn-email": (idn_email, "a@b.c"),
    "idn-hostname": (idn_hostname, "a"),
    "ipv4": (ipv4, "0.0.0.0"),
    "ipv6": (ipv6, "::"),
    "iri": (iri, "a:"),
    "iri-reference": (iri_reference, ""),
    "json-pointer": (_pattern(_POINTER), ""),
    "regex": (regex, ""),
    "relative-json-pointer": (_pattern(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"), "0"),
    "time": (time, "00:00:00Z"),
    "uri": (uri, "a:"),
    "uri-reference": (uri_reference, ""),
    "uri-template": (uri_template, ""),
    "uuid": (_pattern("[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"), "00000000-0000-0000-0000-000000000000"),
}
_OLD_NAMES = {"host-name": "hostname", "ip-address": "ipv4"}

NAMES = frozenset((*_FORMATS, *_OLD_NAMES))
"""The formats that are enforced. All others are annotations, as the standard has it."""

_BOUNDS = {
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "date-time": "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:.+Zz-]+",
    "email": r"[ -~]+@[!-~]+",
    "hostname": "[A-Za-z0-9.-]+",
    "idn-email": r"[^\x00-\x1f]+@[^\x00-\x20]+",
    "idn-hostname": r"[^\x00-,/:-@\[-`{-\x7f]+",
    "iri": r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20<>\x7f]*",
    "iri-reference": r"[^\x00-\x20<>\x7f]*",
    "regex": r"[\s\S]*",
    "time": "[0-9]{2}:[0-9]{2}:[0-9.]+(?:[Zz]|[+-][0-9:]{5})",
    "uri-template": r"[^\x00-\x20<>\x7f]*",
}
"""Supersets of the formats that have texts which `language` leaves out."""

ONLY_DRAFT_3 = frozenset({"color", "host-name", "ip-address"})
SINCE = {
    **dict.fromkeys(("json-pointer", "uri-reference", "uri-template"), 6),
    **dict.fromkeys(("date", "time", "idn-email", "idn-hostname", "iri", "iri-reference", "regex"), 7),
    "relative-json-pointer": 7,
    **dict.fromkeys(("duration", "uuid"), 2019),
}
"""The drafts that brought a format; those that are not named here have been there since draft 4."""

NARROWED = frozenset(name for name in NAMES if _OLD_NAMES.get(name, name) in _BOUNDS)
"""Formats that have texts which `language` leaves out, so that its complement is not what breaks the format."""


@cache
def language(name: str) -> Language | None:
    """The texts of a format; None if its name is unknown, so that it is an annotation."""
    found = _FORMATS.get(_OLD_NAMES.get(name, name))
    return None if found is None else found[0]()


@cache
def outside(name: str) -> Language | None:
    """Texts that are not of a format: all of them, unless it is one of `NARROWED`; None if its name is unknown."""
    bound = _BOUNDS.get(_OLD_NAMES.get(name, name))
    found = language(name) if bound is None else parse_whole(bound)
    return None if found is None else ~found


def example(name: str) -> str:
    """A short text of a known format. Raises KeyError for others."""
    return _FORMATS[_OLD_NAMES.get(name, name)][1]
