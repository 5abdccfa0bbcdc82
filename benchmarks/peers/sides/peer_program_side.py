"""One side of a comparison on programs: an engine with its client in a process of its own; see `peer_side`.

Ours runs as a module of the package; a peer's interpreter runs this file by its path, which loads the files beside it
by theirs. The one job is "programs": {plans, at_once, stop_s} to {seconds, programs}, see `peer_program_plan.check`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

CLIENTS = {
    "bough": "peer_program_bough",
    "openvino": "peer_program_openvino",
    "llama.cpp": "peer_program_llama_cpp",
    "llama.cpp server": "peer_program_http",
    "vllm": "peer_program_http",
    "guidance": "peer_program_guidance",
    "outlines": "peer_program_outlines",
    "sglang": "peer_program_sglang",
}
"""The file beside this one that makes each client, by a function `load(options, beside) -> Client`.

`beside` loads others of these files, such as "peer_program_walk", which they cannot import by themselves.
"""


class Client(Protocol):
    def run(self, plans: list[Any], at_once: int, stop_s: float) -> dict[str, Any]:
        """Runs programs, and begins none after `stop_s`. Raises NotImplementedError: there are no means for these."""


def _programs(client: Any, message: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    result: dict[str, Any] = client.run(message["plans"], message["at_once"], message["stop_s"])
    return {"seconds": time.perf_counter() - started} | result


def load_beside(name: str) -> Any:
    """The module in the file beside this one."""
    if __package__:
        return importlib.import_module(f".{name}", __package__)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
    return sys.modules[name]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("options", help="a JSON object: threads, and what else its file reads")
    arguments = parser.parse_args(argv)
    peer_side = load_beside("peer_side")
    options = json.loads(arguments.options) | {"client": arguments.client}
    started = time.perf_counter()
    client: Client = load_beside(CLIENTS[arguments.client]).load(options, load_beside)
    peer_side.send({"ready": time.perf_counter() - started})
    status: int = peer_side.serve(client, {"programs": _programs, "memory": peer_side.JOBS["memory"]})
    return status


if __name__ == "__main__":
    sys.exit(main())
