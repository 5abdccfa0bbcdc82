"""Cases that have not changed are not compiled again, and those that have are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .test_compile import case

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def test_what_has_not_changed_is_taken_from_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bough.kernels import compile_check
    from bough.kernels.compile_check import Finding, inspect_changed
    from bough.kernels.compile_ledger import Ledger, Needs

    compiled = []

    def inspect_all(work: list[tuple[str, str, int]], *, num_workers: int) -> list[Finding]:
        compiled.extend(work)
        return [Finding(*item, Needs(registers=8, shape="m16n8k16 m16n8k8")) for item in work]

    monkeypatch.setattr(compile_check, "inspect_all", inspect_all)
    work = {("m", f"case, {number}", 80): f"{number:016}" for number in range(4)}
    first = inspect_changed(work, Ledger(tmp_path / "3.csv"), 2, num_workers=1)
    assert compiled == list(work)
    Ledger(tmp_path / "3.csv").write(
        {item: (digest, each.needs) for (item, digest), each in zip(work.items(), first, strict=True)}
    )
    compiled.clear()
    assert inspect_changed(work, Ledger(tmp_path / "3.csv"), 0, num_workers=1) == first
    assert compiled == []
    changed = work | {("m", "case, 1", 80): "other"}
    inspect_changed(changed, Ledger(tmp_path / "3.csv"), 0, num_workers=1)
    assert compiled == [("m", "case, 1", 80)]
    compiled.clear()
    (tmp_path / "3.csv").write_text((tmp_path / "3.csv").read_text().replace(",8,0,", ",9,0,"))
    wrong = inspect_changed(work, Ledger(tmp_path / "3.csv"), 2, num_workers=1)
    assert compiled == [("m", "case, 0", 80), ("m", "case, 2", 80)]
    assert [(each.fault or "")[:19] for each in wrong] == ["the ledger is wrong", "", "the ledger is wrong", ""]


def test_a_digest_is_of_what_goes_into_the_compiler() -> None:
    from bough.kernels.compile_ledger import digest_of

    digest = digest_of(case(), 90)
    assert digest_of(case(name="other", roomy=True), 90) == digest
    assert digest_of(case(), 89) != digest
    for changes in ({"constants": {"block": 32}}, {"num_warps": 8}, {"aligned": ()}, {"fusion": False}):
        assert digest_of(case(**changes), 90) != digest
