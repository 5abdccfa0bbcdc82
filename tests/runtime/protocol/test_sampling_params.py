"""Rules for choosing tokens, as they come from clients."""

from __future__ import annotations

import pytest

from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.sampling_params import SamplingParams


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs", "temperature"])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_no_float_holds_are_refused(name: str, sign: int) -> None:
    with pytest.raises(RequestError, match=rf"{name} must be at (most|least) .*, got a number of 1329 bits") as caught:
        SamplingParams(**{name: sign * 10**400})  # type: ignore[arg-type]
    assert caught.value.param == name
