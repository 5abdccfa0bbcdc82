"""Size of the GPU or its stand-in, on which launch configurations depend."""

from __future__ import annotations

from functools import lru_cache

import torch

_INTERPRETED_PROCESSORS = 4
"""Stand-in for the number of multiprocessors when kernels are interpreted in tests: small, but more than one."""


@lru_cache
def is_roomy(device: torch.device | str) -> bool:
    """Returns True if a program may have at least 160 KiB of shared memory, as on A100, H100, B200, rather than 99 KiB,
    as on RTX 30 to 50, A10, L4, L40S. True for the interpreter."""
    if torch.device(device).type != "cuda":
        return True
    capability = torch.cuda.get_device_capability(device)
    return capability in ((8, 0), (8, 7)) or capability[0] in (9, 10)


@lru_cache
def has_tensor_memory(device: torch.device | str) -> bool:
    """Returns True if products are summed in tensor memory, as on B200: 512 columns for each program."""
    return torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device)[0] == 10


def num_processors(device: torch.device | str) -> int:
    """Returns the number of multiprocessors of `device`, each of which runs several programs at a time."""
    if torch.device(device).type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
