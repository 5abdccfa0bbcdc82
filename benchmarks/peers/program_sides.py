"""The peers that programs are run on: what each needs installed, and how its side is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...runtime.models.load import locate
from ..harness.child import python_command
from ..harness.server_process import ServerProcess
from .contest import PeerRun
from .process import OURS, Side
from .setup.environments import make_environment
from .setup.models import make_model, model_folder
from .setup.requirements import RECIPES, Recipe
from .setup.tokenizer import make_tokenizer
from .sides import peer_program_side

SGLANG = "sglang"
"""SGLang's language on our own server: no peer of our engine's, but of programs that run in it."""

_CLIENTS = Recipe(
    steps=(
        *RECIPES["llama.cpp"].steps,
        (
            "llama-cpp-python[server]==0.3.36",
            "guidance==0.3.1",
            "outlines==1.3.3",
            "huggingface_hub",
            "numba==0.68.1",
            "openai==3.54.0",
        ),
    ),
    variables=RECIPES["llama.cpp"].variables,
    imports=("llama_cpp.server", "guidance", "outlines", "openai"),
)
_SGLANG = Recipe(
    # The last release whose language can be installed without its engine.
    steps=(("sglang==0.4.10.post2", "pybase64", "pydantic"),),
    imports=("sglang",),
)

_MAX_SEQS = 64
_CONTEXT_TOKENS = 2048
_SLOTS = 32
_SLOT_TOKENS = 1024


@dataclass(frozen=True)
class Peer:
    """`kind` of model files, see `peer_models`. `about` says in a few words what is run.

    weight    of its share of the time: the best ones have rounds enough
    limited   answers one call after the other, so that a part of the programs says how fast it is
    driven    step by step in its own process, by our walker of programs: faster than a server, and nothing one can have
    """

    name: str
    about: str
    environment: str
    recipe: Recipe
    kind: str
    weight: int = 2
    limited: bool = False
    driven: bool = False

    @property
    def engine(self) -> str:
        """What computes: one of RECIPES."""
        return self.environment if self.environment in RECIPES else "llama.cpp"


PEERS = (
    Peer(
        "openvino",
        "continuous batching in the process",
        "openvino",
        RECIPES["openvino"],
        "openvino-int8",
        5,
        driven=True,
    ),
    Peer("llama.cpp", f"{_SLOTS} sequences in the process", "llama.cpp", RECIPES["llama.cpp"], "gguf", 4, driven=True),
    Peer("vllm", "server, openai client", "vllm", RECIPES["vllm"], "folder", 3),
    Peer("llama.cpp server", "llama-cpp-python's, openai client", "clients", _CLIENTS, "gguf", limited=True),
    Peer("guidance", "on llama.cpp", "clients", _CLIENTS, "gguf", limited=True),
    Peer("outlines", "on llama.cpp", "clients", _CLIENTS, "gguf", limited=True),
)
LANGUAGE = Peer(SGLANG, "its language on our server", "sglang", _SGLANG, "gguf")


def start_ours(run: PeerRun) -> Side:
    """Our side, loading."""
    settings = {"max_num_seqs": _MAX_SEQS, **run.settings}
    options = {"model": run.model, "settings": settings}
    return _side(run, OURS, python_command("peers.sides.peer_program_side"), options)


def start_peer(run: PeerRun, peer: Peer) -> Side:
    """A peer's side, loading; what it needs is made first.

    Raises:
        PeerError: its environment or model could not be had.
    """
    interpreter = make_environment(peer.environment, recipe=peer.recipe, python=run.python)
    source = locate(run.model)
    options = {
        "model_file": str(make_model(peer.kind, run.model, interpreter)),
        "tokenizer": str(make_tokenizer(source, model_folder(source) / "tokenizer")),
        "threads": run.threads,
        "max_num_seqs": _SLOTS if peer.name == "llama.cpp" else _MAX_SEQS,
        "max_model_len": _SLOT_TOKENS if peer.name == "llama.cpp" else _CONTEXT_TOKENS,
        "cache_gib": 4,
    }
    return _side(run, peer.name, _command(interpreter), options)


def start_language(run: PeerRun, server: ServerProcess) -> Side:
    """SGLang's language, on our server.

    Raises:
        PeerError: its environment could not be made.
    """
    interpreter = make_environment(LANGUAGE.environment, recipe=LANGUAGE.recipe, python=run.python)
    address = urlsplit(server.url)
    options = {"host": address.hostname, "port": address.port, "model": server.model}
    return _side(run, SGLANG, _command(interpreter), options)


def _command(interpreter: Path) -> list[str]:
    return [str(interpreter), "-P", "-u", str(Path(peer_program_side.__file__).resolve())]


def _side(run: PeerRun, name: str, command: list[str], options: Mapping[str, Any]) -> Side:
    variables = {"OMP_NUM_THREADS": str(run.threads)}
    return Side(name, [*command, name, json.dumps(options)], log=run.log, variables=variables)
