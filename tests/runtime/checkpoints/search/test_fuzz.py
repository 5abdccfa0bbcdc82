"""Thousands of damaged and hostile files: each is refused by a line, or is a model that works. Nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.kernels.native.library import Library
from bough.runtime.load.start import start_engine
from bough.runtime.protocol.config import EngineConfig

from ....support import sanitized
from . import fuzz
from .fuzz import KINDS, Tally, TrialProcess, Trials
from .gguf_image import change_image
from .mutate import change_json, change_safetensors
from .originals import gguf_image, write_folders


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials(1) as trials:
        yield trials


@pytest.fixture(scope="module")
def sanitized_trials() -> Iterator[Trials]:
    """With AddressSanitizer and UndefinedBehaviorSanitizer, which end the process at what they find."""
    with Trials(1, memory=0, environment=sanitized.environment("address"), native=True) as trials:
        yield trials


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_does_worse_than_to_be_refused(kind: str, trials: Trials) -> None:
    """Within 2 GiB of address space and 10 s of processor time each."""
    assert_harmless(trials.run(kind, 0, 2_000), works=200)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(sanitized.missing("address") is not None, reason=str(sanitized.missing("address")))
@pytest.mark.parametrize("kind", KINDS)
def test_the_library_in_c_touches_nothing_that_is_not_its_own(kind: str, sanitized_trials: Trials) -> None:
    assert_harmless(sanitized_trials.run(kind, 1_000_000, 500), works=40)


def assert_harmless(tally: Tally, *, works: int) -> None:
    assert tally.findings == [], "\n".join(map(str, tally.findings[:20]))
    assert tally.works >= works and tally.refused >= works, f"what is tried shows little: {tally}"


class TestWatch:
    """Each thing that must not happen is seen; the one file is blamed, and the next one tried."""

    TRIAL = """
import json, os, signal, sys
print('["ready", ""]', flush=True)
for line in sys.stdin:
    kind, seed = json.loads(line)
    if seed == 1:
        while True:
            pass
    if seed == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 3:
        sys.exit("a last word")
    verdict = {4: "broken", 5: "refused"}.get(seed, "works")
    print(json.dumps([verdict, "a note"]), flush=True)
"""

    def test_findings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fuzz, "_START", self.TRIAL.replace("{", "{{").replace("}", "}}"))
        monkeypatch.setattr(fuzz, "HANG_S", 0.5)
        shown: list[fuzz.Finding] = []
        with Trials(1) as trials:
            tally = trials.run("gguf", 0, 8, shown.append)
        assert (tally.works, tally.refused, dict(tally.reasons)) == (3, 1, {"a note": 1})
        assert [finding.seed for finding in tally.findings] == [1, 2, 3, 4]
        notes = [finding.note for finding in tally.findings]
        assert "no answer after" in notes[0] and "status -11" in notes[1] and "a last word" in notes[2]
        assert shown == tally.findings
        assert str(shown[0]).startswith("--kind gguf --seed 1 --count 1: ")

    def test_memory(self) -> None:
        """The limit is in force where files are loaded."""
        process = TrialProcess()
        try:
            limits = Path(f"/proc/{process.process_id}/limits").read_text().splitlines()
            (line,) = [line for line in limits if line.startswith("Max address space")]
            assert line.split()[3:5] == [str(fuzz.MEMORY)] * 2
            assert process.ask("gguf", 0)[0] in {"works", "refused"}
        finally:
            process.close()


def test_the_originals_work(tmp_path: Path, native_library: Library) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_image().to_bytes())
    for path in (tmp_path / "model.gguf", *write_folders(tmp_path).values()):
        engine = start_engine(EngineConfig(model=str(path), num_pages=64, device="cpu"))
        assert engine.info.vocab_size > 256
        engine.close()


def test_changes_follow_from_the_seed_and_are_changes(tmp_path: Path) -> None:
    folder = write_folders(tmp_path)["plain"]
    weights, config = (folder / "model.safetensors").read_bytes(), (folder / "config.json").read_bytes()
    whole = gguf_image().to_bytes()
    different = 0
    for seed in range(100):
        made = [
            (
                change_image(random.Random(seed), gguf_image()),
                change_safetensors(random.Random(seed), weights),
                change_json(random.Random(seed), config),
            )
            for _ in range(2)
        ]
        assert made[0] == made[1]
        different += sum(new != old for new, old in zip(made[0], (whole, weights, config), strict=True))
    assert different > 280
