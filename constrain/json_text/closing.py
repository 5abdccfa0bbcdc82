"""The shortest text that makes the beginning of a JSON text a whole one, found by reading it byte by byte."""

from __future__ import annotations

import copy

_LITERALS = {ord("t"): b"rue", ord("f"): b"alse", ord("n"): b"ull"}
_DIGITS = frozenset(b"0123456789")
_SPACE = frozenset(b" \t\n\r")


class JsonScanner:
    """Reads a beginning of a JSON text and knows what closes it. Reading is incremental; `copy` forks it.

    The text must be a beginning of JSON: what a grammar of JSON texts let through. `value` is the text that stands for
    a value where one is missing.
    """

    def __init__(self, value: bytes = b"null") -> None:
        self._value = value
        self._stack = bytearray()  # open brackets
        self._expects = "value"  # value, first (value or ]), key, first_key (key or }), colon, comma, end
        self._within = ""  # "", string, escape, unicode, literal, number
        self._rest = b""  # what the literal, escape or character begun still needs
        self._is_key = False
        self._number = b""

    def copy(self) -> JsonScanner:
        """An independent scanner in the same state."""
        other = copy.copy(self)
        other._stack = self._stack[:]
        return other

    def feed(self, data: bytes) -> None:
        """Reads on."""
        for byte in data:
            self._read(byte)

    def closing(self) -> bytes:
        """The text to append; empty if the text is whole as it is."""
        result = bytearray(self._rest)
        expects = self._expects
        if self._within in ("string", "escape", "unicode"):
            result += b'"'
            expects = "colon" if self._is_key else "comma"
        elif self._within == "literal":
            expects = "comma"
        elif self._within == "number":
            if self._number[-1:] not in (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"):
                result += b"0"
            expects = "comma"
        if expects == "value":
            result += self._value
        elif expects == "key":
            result += b'"":' + self._value
        elif expects == "colon":
            result += b":" + self._value
        result += bytes(125 if bracket == 123 else 93 for bracket in reversed(self._stack))
        return bytes(result)

    def _read(self, byte: int) -> None:
        if self._within in ("string", "escape", "unicode"):
            self._read_string(byte)
        elif self._within == "literal":
            self._rest = self._rest[1:]
            if not self._rest:
                self._end_value()
        elif self._within == "number" and (byte in _DIGITS or byte in b".eE+-"):
            self._number = bytes([byte])
        else:
            if self._within == "number":
                self._end_value()
            self._read_structure(byte)

    def _read_string(self, byte: int) -> None:
        if self._rest and self._within != "escape":
            self._rest = self._rest[1:]  # inside \u0000 or a character of several bytes
            if not self._rest:
                self._within = "string"
        elif self._within == "escape":
            self._within, self._rest = ("unicode", b"0000") if byte == ord("u") else ("string", b"")
        elif byte == ord("\\"):
            self._within, self._rest = "escape", b'"'
        elif byte == ord('"'):
            if self._is_key:
                self._within, self._expects = "", "colon"
            else:
                self._end_value()
        elif byte >= 0xC0:
            self._rest = _CONTINUATIONS[byte] if byte in _CONTINUATIONS else _continuation(byte)

    def _read_structure(self, byte: int) -> None:
        if byte in _SPACE:
            return
        if byte == ord('"'):
            self._is_key = self._expects in ("key", "first_key")
            self._within = "string"
        elif byte in b"{[":
            self._stack.append(byte)
            self._expects = "first_key" if byte == ord("{") else "first"
        elif byte in b"}]":
            self._stack.pop()
            self._end_value()
        elif byte == ord(","):
            self._expects = "key" if self._stack[-1] == ord("{") else "value"
        elif byte == ord(":"):
            self._expects = "value"
        elif byte in _LITERALS:
            self._within, self._rest = "literal", _LITERALS[byte]
        else:
            self._within, self._number = "number", bytes([byte])

    def _end_value(self) -> None:
        self._within = ""
        self._rest = b""
        self._expects = "comma" if self._stack else "end"


_CONTINUATIONS = {0xE0: b"\xa0\x80", 0xED: b"\x80\x80", 0xF0: b"\x90\x80\x80", 0xF4: b"\x80\x80\x80"}


def _continuation(lead: int) -> bytes:
    """Bytes that complete the character that `lead` begins."""
    return b"\x80" * (1 if lead < 0xE0 else 2 if lead < 0xF0 else 3)
