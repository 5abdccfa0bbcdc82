"""Installs the build of torch that suits this machine into the environment of the running interpreter.

With an NVIDIA GPU: the newest release, as pip resolves it. Without: the release that the tests run on; which build of
it (CPU only, or with CUDA libraries that would lie idle) is decided by pip's own configuration. Two environment
variables overrule this:

    TORCH_SPEC       what to ask pip for, such as "torch==2.12.1"
    TORCH_INDEX_URL  the package index to ask, such as the one for CPU builds that PyTorch's installation page names
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys

GPU_SPEC = "torch>=2.11"
CPU_SPEC = "torch==2.13.0"


def has_nvidia_gpu() -> bool:
    """The driver's own tool is there and lists a device."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listing = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def pip_arguments(*, gpu: bool, environment: dict[str, str]) -> list[str]:
    """Returns the arguments of `pip install` for such a machine."""
    spec = environment.get("TORCH_SPEC") or (GPU_SPEC if gpu else CPU_SPEC)
    index = environment.get("TORCH_INDEX_URL")
    return [spec, *(["--index-url", index] if index else [])]


def main() -> int:
    try:
        print(f"torch {importlib.metadata.version('torch')} is installed")
        return 0
    except importlib.metadata.PackageNotFoundError:
        pass
    arguments = pip_arguments(gpu=has_nvidia_gpu(), environment=dict(os.environ))
    print("installing", *arguments, flush=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
