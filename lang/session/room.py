"""Options of a generation where it is recorded, and a limit of tokens in which no value of its type can be finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runtime.protocol.sampling_params import SamplingParams
from ..backend import Backend
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place
from ..record.expression import Generate
from ..record.options import merge_options


def sampling_of(item: Generate, defaults: Mapping[str, Any], backend: Backend, here: Place) -> SamplingParams:
    """Returns the parameters of a generation.

    Raises:
        ProgramError: no value of its type has room in `max_tokens`. Backends with the model's tokenizer tell here;
            servers refuse the program.
    """
    sampling = merge_options(defaults, item.options)
    tokenizer = getattr(backend, "tokenizer", None)
    if item.grammar is None or tokenizer is None:
        return sampling
    from ...runtime.programs.room import refusal, too_small  # noqa: PLC0415  once a type is asked for

    reason = too_small(item.grammar, sampling, tokenizer)
    if reason is not None:
        kind = getattr(item.kind, "__name__", None) or "its constraint"
        raise ProgramError(refusal(sampling, kind, reason), code="invalid_value", param="max_tokens", place=here)
    return sampling
