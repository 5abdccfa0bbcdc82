"""Engines in processes of their own: one that hangs, dies or is absent costs its own cases only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bough.benchmarks.constrain.cases import SchemaCase
from bough.benchmarks.constrain.contest import Contestant, contest, engine_command
from bough.benchmarks.peers.process import PeerError

from .test_constrain import CASE, VOCABULARY

SCRIPT = """
import json, sys, time
print("chatter")
print('@bench {"version": "0.1"}', flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["text"] == "hang":
        time.sleep(60)
    if request["text"] == "die":
        sys.exit(1)
    walks = [{"accepted": True, "num_tokens": 1, "mask_us": [2.0]} for _ in request["walks"]]
    print("@bench " + json.dumps({"refused": None, "compile_us": 1500.0, "walks": walks}), flush=True)
"""


class TestContest:
    @pytest.fixture
    def peer(self, tmp_path: Path) -> Contestant:
        (tmp_path / "peer.py").write_text(SCRIPT)
        command = [sys.executable, str(tmp_path / "peer.py")]
        return Contestant("peer", command, tmp_path / "log", budget_s=30.0, limit_s=2.0)

    def test_a_hang_costs_its_own_case(self, peer: Contestant) -> None:
        cases = [
            CASE,
            SchemaCase("g", "hang", "hang", CASE.instances),
            SchemaCase("g", "die", "die", CASE.instances),
            CASE,
        ]
        measured = contest([peer], cases, VOCABULARY)["peer"]
        peer.close()
        assert peer.version == "0.1"
        assert [outcome.verdict for outcome in measured] == ["under", "refused", "refused", "under"]
        assert (measured[0].compile_ms, measured[0].mask_us) == (1.5, [2.0] * 3)
        assert measured[1].refused == "gone: peer: no answer within 2 s"

    def test_a_peer_whose_time_is_up_keeps_what_it_has(self, peer: Contestant) -> None:
        peer.left_s = 0.0
        assert contest([peer], [CASE], VOCABULARY) == {"peer": []}
        peer.close()

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(PeerError, match="No such file"):
            Contestant("peer", [str(tmp_path / "none")], tmp_path / "log", budget_s=1.0, limit_s=1.0)
        with pytest.raises(PeerError, match="peer ended with status 0"):
            Contestant("peer", [sys.executable, "-c", ""], tmp_path / "log", budget_s=1.0, limit_s=1.0)
        with pytest.raises(PeerError, match="no --peers"):
            engine_command("xgrammar", "model", tmp_path / "vocabulary", None)
