"""Size of the GPU, or of what stands in for one: launch configurations depend on it."""

from __future__ import annotations

from functools import lru_cache

import torch

_INTERPRETED_PROCESSORS = 4
"""Without a GPU kernels are interpreted, for tests: few programs, but more than one."""


@lru_cache
def is_roomy(device: torch.device | str) -> bool:
    """Tells whether a program may have 160 KiB of shared memory and more, as on A100, H100, B200, and not 99 KiB only,
    as on RTX 30 to 50, A10, L4, L40S. The interpreter is roomy."""
    if torch.device(device).type != "cuda":
        return True
    capability = torch.cuda.get_device_capability(device)
    return capability in ((8, 0), (8, 7)) or capability[0] in (9, 10)


@lru_cache
def has_tensor_memory(device: torch.device | str) -> bool:
    """Tells whether products are summed in a memory of their own, as on B200: 512 columns for each program."""
    return torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device)[0] == 10


def num_processors(device: torch.device | str) -> int:
    """Multiprocessors of `device`, each of which runs several programs at a time."""
    if torch.device(device).type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
