"""The seam: every backend has what a program needs, and type checkers know it."""

from __future__ import annotations

import inspect

import pytest

from bough.lang.backend import Backend
from bough.lang.backends.apis.anthropic import Anthropic
from bough.lang.backends.apis.openai import OpenAI
from bough.lang.backends.http import HttpBackend
from bough.lang.backends.local import LocalBackend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import BackendError, ProgramError, UnsupportedError
from bough.lang.diagnostics.source_lines import Place
from bough.runtime.protocol.errors import BoughError

# mypy compares the signatures
BACKENDS: list[type[Backend]] = [Anthropic, HttpBackend, LocalBackend, MockBackend, OpenAI]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_has_all_methods(backend):
    for name in ("run", "arun", "drop", "flush_cache", "close"):
        wanted = inspect.signature(getattr(Backend, name)).parameters
        assert list(inspect.signature(getattr(backend, name)).parameters) == list(wanted)
    assert backend.modalities == {"text"}


def test_errors_are_bough_errors_with_a_code():
    for kind, code in (
        (ProgramError, "program_error"),
        (UnsupportedError, "unsupported"),
        (BackendError, "backend_error"),
    ):
        error = kind("what went wrong", param="field")
        assert isinstance(error, BoughError)
        assert (error.code, error.param, str(error)) == (code, "field", "what went wrong")


def test_a_line_that_cannot_be_found_is_still_named():
    error = ProgramError("no", place=Place("/nowhere/program.py", 3, "body"))
    assert str(error) == "no\n  at /nowhere/program.py:3, in body"
