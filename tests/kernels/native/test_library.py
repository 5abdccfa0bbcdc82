"""The library is there wherever it can be, and does what its structures say."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bough.kernels.native import library
from bough.kernels.native.library import Library, load_library
from bough.kernels.native.threads import Threads

from ...support.tiny_model import write_tiny_model

ANSWERS = """
import sys
from bough import LLM, SamplingParams
draws = [{"temperature": 0}, {"top_p": 0.7}, {"temperature": 1.5, "top_k": 9}, {"min_p": 0.1}]
params = [SamplingParams(max_tokens=12, logprobs=3, seed=1, ignore_eos=True, **options) for options in draws]
prompts = [("What a key has in common with another, " * 6)[: 20 + 60 * number] for number in range(4)]
for kind, kv, activations in (
    ("int8", "auto", "mixed"), ("int8", "auto", "int8"), ("int4", "int8", "mixed"),
    ("w8a8", "int8", "int8"), ("w8a8", "auto", "int8"),
):
    options = {"kv_cache_dtype": kv, "activations": activations, "num_pages": 2000, "max_batch_tokens": 48}
    llm = LLM(sys.argv[1], quantization=kind, **options)
    answers = llm.generate(prompts, params, use_tqdm=False)
    print(kind, kv, activations, [(answer.outputs[0].token_ids, answer.outputs[0].logprobs) for answer in answers])
    llm.close()
"""


def test_it_was_built_where_it_can_be() -> None:
    has_variant = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if not has_variant or not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("needs Linux on x86-64 or ARM64, and a C compiler")
    if platform.machine() == "x86_64" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("the processor has no AVX2")
    assert load_library() is not None, "`make dev`, or pip install --editable ., builds it"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_find_nothing_to_warn_of(compiler: str, repository: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}, on x86-64")
    sources = sorted((repository / "kernels" / "native" / "source").glob("*.c"))
    flags = ["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run([compiler, *flags, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_environment_chooses_the_variant(native_library: Library) -> None:
    if native_library.instructions not in ("AVX2", "AVX-VNNI", "AVX-512"):
        pytest.skip("needs x86; test_arm.py is for ARM64")
    ask = "from bough.kernels.native.library import load_library; print(load_library().instructions)"
    command, environment = [sys.executable, "-P", "-c", ask], os.environ | {"BOUGH_CPU": "avx2"}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "AVX2\n"


def test_an_old_library_is_told_from_a_new_one(native_library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    load_library.cache_clear()
    monkeypatch.setattr(library, "Cache", library.Batch)
    try:
        with pytest.raises(RuntimeError, match="older sources"):
            load_library()
    finally:
        load_library.cache_clear()


def test_threads_begin_and_end(native_library: Library) -> None:
    """Also those that never had anything to do."""
    before = len(os.listdir("/proc/self/task"))
    for num in (1, 2, 7):
        threads = Threads(native_library, num)
        assert len(os.listdir("/proc/self/task")) == before + num - 1
        del threads
        assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.slow
@pytest.mark.usefixtures("native_library")
def test_all_variants_compute_the_same_bits(tmp_path: Path) -> None:
    """Compares each form of weights and caches: an answer does not depend on the processor."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    variants = ["", "avx2", *(["avxvnni"] if "avx_vnni" in flags else [])]
    model = write_tiny_model(tmp_path, hidden_size=192, intermediate_size=320, head_dim=64, num_key_value_heads=1)
    command = [sys.executable, "-P", "-c", ANSWERS, str(model)]
    said = []
    for variant in variants:
        environment = os.environ | {"BOUGH_CPU": variant}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert len(said[0]) == 5
    for variant, lines in zip(variants, said, strict=True):
        assert lines == said[0], variant


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("native_library")
def test_the_variant_for_plain_avx2_is_as_right(repository: Path) -> None:
    """On processors that have more, too."""
    files = ["tests/kernels/native/test_weights.py", "tests/runtime/runner/test_native_runner.py"]
    files.append("tests/runtime/sampler/test_native_sampler.py")
    chosen = ["-k", "not change_nothing or 0-16 or 3-1-"]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *files]
    environment = os.environ | {"BOUGH_CPU": "avx2"}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
