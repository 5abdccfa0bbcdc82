"""Size of the GPU, or of what stands in for one: launch configurations depend on it."""

from __future__ import annotations

import torch

_INTERPRETED_PROCESSORS = 4
"""Without a GPU kernels are interpreted, for tests: few programs, but more than one."""


def num_processors(device: torch.device | str) -> int:
    """Multiprocessors of `device`, each of which runs several programs at a time."""
    if torch.device(device).type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
