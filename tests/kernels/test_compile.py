"""Every Triton kernel compiles for the GPUs that we build for, and needs no more of them than they have."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

MATRIX_KERNELS = ("linear.invariant_matmul",)
"""Modules whose kernels are worth nothing unless they use the matrix units."""


OLDEST = Path(sys.prefix) / "triton-oldest"
"""The oldest Triton that we support, where `make test` puts it: compilers spill in different places."""


LEDGERS = Path(__file__).parent / "compiled"
AGAIN = 16
"""Cases of the ledger that are compiled all the same, of each Triton."""

TARGETS = {80, 86, 89, 90, 100, 120}


@pytest.fixture(scope="module", params=["installed", "oldest"])
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Runs the check in a process of its own: in this one kernels may be interpreted. A release of Triton without a
    ledger compiles everything, for two targets."""
    folder = tmp_path_factory.mktemp("compile")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONSAFEPATH": "1"}
    if request.param == "oldest":
        if not OLDEST.is_dir():
            pytest.skip("make test installs the oldest Triton on Linux")
        environment["PYTHONPATH"] = str(OLDEST)
    release = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    version = subprocess.run(release, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    command = [sys.executable, "-m", "bough.kernels.compile_check", "--json", str(folder / "found.json")]
    has_ledger = (LEDGERS / f"{version}.csv").exists()
    command += ["--ledger", str(LEDGERS), "--again", str(AGAIN)] if has_ledger else ["--target", "80", "--target", "90"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(ended.stdout)
    assert (folder / "found.json").exists(), ended.stderr
    found: list[dict[str, Any]] = json.loads((folder / "found.json").read_text())
    assert (ended.returncode != 0) == any(finding["fault"] for finding in found)
    unlisted = [f"{f['module']}, {f['case']}, sm_{f['target']}" for f in found if not f["listed"]]
    assert not (has_ledger and unlisted), f"kernels have changed: run `make compiled`. {unlisted[:5]}"
    assert {f["target"] for f in found} == (TARGETS if has_ledger else {80, 90})
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_kernel_has_a_fault(findings: list[dict[str, Any]]) -> None:
    faults = [f"{f['module']}, {f['case']}, sm_{f['target']}: {f['fault']}" for f in findings if f["fault"]]
    assert faults == []
    assert all(f["registers"] > 0 for f in findings)


def test_both_releases_have_a_ledger_of_the_same_cases() -> None:
    ledgers = [path.read_text().splitlines() for path in sorted(LEDGERS.glob("*.csv"))]
    assert len(ledgers) == 2
    first, second = ({tuple(line.split(",")[:3]) for line in lines} for lines in ledgers)
    assert first == second


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_products_use_the_matrix_units(findings: list[dict[str, Any]]) -> None:
    units = {90: "wgmma", 100: "tcgen05"}
    mine = [f for f in findings if f["module"] in MATRIX_KERNELS and "fp32" not in f["case"]]
    assert mine
    for finding in mine:
        assert finding[units.get(finding["target"], "mma")] > 0, finding


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_heights_of_a_product_issue_the_same_instructions(findings: list[dict[str, Any]]) -> None:
    """The promise of invariant_matmul that a row is the same among few rows and among many rests on this."""
    kinds: dict[tuple[str, int], dict[str, str]] = {}
    for finding in findings:
        words = finding["case"].split()
        if finding["module"] == "linear.invariant_matmul" and len(words) == 4:
            kinds.setdefault((words[1], finding["target"]), {})[words[2]] = finding["shape"]
    assert kinds.keys() == {(kind, f["target"]) for kind in ("narrow", "wide") for f in findings}
    for (kind, target), found in kinds.items():
        if target == 100:  # one height for all rows
            assert len(found) == 1
        else:
            assert sorted(found) == ["T128", "T64"]
            assert len(set(found.values())) == 1 and found["T64"], (kind, target, found)


def launches(tree: ast.AST) -> Iterator[str]:
    """Names of what is launched as `kernel[grid](...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield ast.unparse(node.func.value)


def kernels(tree: ast.Module) -> set[str]:
    """Names of the functions that are Triton kernels or parts of one."""
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
    }


def unlisted(source: str) -> list[str]:
    """Kernels that `source` launches, and does not name anywhere else: so not where its cases are made, either."""
    tree = ast.parse(source)
    launched = Counter(launches(tree))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "compile_cases" for node in tree.body):
        return sorted(launched)
    named = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return sorted(name for name in kernels(tree) if 0 < launched[name] == named[name])


def test_every_launched_kernel_is_listed(repository: Path) -> None:
    sources = sorted((repository / "kernels").rglob("*.py"))
    assert sources
    found = {str(path): names for path in sources if (names := unlisted(path.read_text()))}
    assert found == {}


def test_a_kernel_that_is_not_listed_is_seen() -> None:
    launch = "@triton.jit\ndef kernel(x):\n    pass\n\ndef run(x):\n    kernel[(1,)](x)\n"
    assert unlisted(launch) == ["kernel"]
    assert unlisted(launch + "def compile_cases():\n    return []\n") == ["kernel"]
    assert unlisted(launch + "def compile_cases():\n    return [CompileCase('k', kernel)]\n") == []
    assert unlisted("@triton.jit\ndef part(x):\n    return x\n") == []


def a_kernel(x, size, block):
    """Never run."""


def case(**changes: Any) -> Any:
    # Imported here and not above: where kernels are interpreted, that must be known before.
    import triton

    from bough.kernels.compile_case import CompileCase

    fields: dict[str, Any] = {
        "name": "a",
        "kernel": triton.JITFunction(a_kernel),
        "signature": {"x": "*fp32", "size": "i32"},
        "constants": {"block": 16},
        "num_warps": 4,
        "aligned": ("x",),
    }
    return CompileCase(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": a_kernel}, "unset TRITON_INTERPRET"),
        ({"constants": {}}, r"differ in the arguments \['block'\]"),
        ({"constants": {"block": 1, "more": 2}}, r"differ in the arguments \['more'\]"),
        ({"constants": {"block": 1, "size": 2}}, r"\['size'\] are both"),
        ({"aligned": ("block",)}, r"\['block'\] are aligned"),
    ],
)
def test_a_case_that_does_not_fit_its_kernel_is_refused(changes: dict[str, Any], message: str) -> None:
    from bough.kernels.compile_check import compile_case

    with pytest.raises(ValueError, match=message):
        compile_case(case(**changes), 90)


def test_a_case_is_for_the_targets_that_launch_it() -> None:
    from bough.kernels.compile_check import applies

    def targets(**changes: Any) -> set[int]:
        return {target for target in TARGETS if applies(case(**changes), target)}

    assert targets() == TARGETS
    assert targets(roomy=True) == {80, 90, 100}
    assert targets(roomy=False) == {86, 89, 120}
    assert targets(since=90, before=120) == {90, 100}
    assert targets(signature={"x": "*fp8e4nv", "size": "i32"}) == {89, 90, 100, 120}


def test_faults_and_their_table() -> None:
    from bough.kernels.compile_check import Finding, table
    from bough.kernels.compile_ledger import Needs

    def fault(target: int, **needs: Any) -> str | None:
        return Finding("a", "b", target, Needs(**needs)).fault

    assert fault(80, shared_bytes=163 * 1024) is None
    assert fault(80, shared_bytes=163 * 1024 + 1) == "needs 166913 bytes of shared memory, there are 166912"
    assert fault(90, shared_bytes=163 * 1024 + 1) is None
    assert fault(90, spill_bytes=8) == "spills 8 bytes"
    both = "spills 8 bytes; needs 101377 bytes of shared memory, there are 101376"
    assert fault(89, spill_bytes=8, shared_bytes=99 * 1024 + 1) == both
    assert fault(100, tensor_columns=513) == "needs 513 columns of tensor memory, there are 512"
    assert Finding("a", "b", 90, Needs(), error="no").fault == "no"
    fine = Finding("a", "b", 80, Needs(registers=64, shared_bytes=163 * 1024, mma=2, shape="m16n8k16"), 0.5)
    assert table([fine]).splitlines()[1].split() == (
        ["a", "b", "sm_80", "64", "0", "163.0", "KiB", "0", "0", "2", "0", "m16n8k16", "0", "0", "0.5", "ok"]
    )
    assert table([fine], markdown=True).splitlines()[1].replace("-", "").replace("|", "").strip() == ""


VARYING = {"T", "num_rows", "batch", "num_tokens"}
"""Names of numbers that differ from step to step."""


def compiled_anew(source: str) -> list[str]:
    """Arguments for whose every value of 1, and of a multiple of 16, Triton compiles a kernel of `source` again."""
    tree = ast.parse(source)
    launched = set(launches(tree))
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in kernels(tree) & launched:
            plain = {a.arg for a in node.args.args if a.annotation is None}
            options = " ".join(ast.unparse(d) for d in node.decorator_list)
            found += [f"{node.name}.{name}" for name in sorted(plain & VARYING) if f"'{name}'" not in options]
    return found


def test_no_kernel_is_compiled_anew_for_a_number_of_rows(repository: Path) -> None:
    """Seconds each, in the middle of serving."""
    sources = sorted((repository / "kernels").rglob("*.py"))
    found = [name for path in sources for name in compiled_anew(path.read_text())]
    assert found == []


def test_an_argument_that_varies_is_seen() -> None:
    body = "def kernel(x, T, BLOCK: tl.constexpr):\n    pass\n\ndef run(x):\n    kernel[(1,)](x, 1)\n"
    assert compiled_anew("@triton.jit\n" + body) == ["kernel.T"]
    assert compiled_anew("@triton.jit(do_not_specialize=['T'])\n" + body) == []
