"""Regular expressions of ECMA-262 and Rust's regex crate, parsed into languages.

The text of a pattern comes in, a language goes out; what no regular language can say is refused by name.
"""
