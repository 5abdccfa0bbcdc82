"""`bough bench`: runs a benchmark by name."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType

from ..runtime.protocol.errors import BoughError
from .parsing.parser import CommandParser

_BENCHMARKS = {
    "programs": "ten multi-call workloads: hit rate, throughput, latency, with the cache off and on",
    "throughput": "the server at 16 concurrent requests against transformers, one by one",
    "speculation": "drafts on and off in turn: copying, JSON and prose, alone and in batches",
    "step": "where the time of a decode step goes, stage by stage, on the CPU",
    "tree_costs": "what tree decode attention saves: bytes and items of the real planner, on a model of the machine",
    "perplexity": "quantised weights beside the model as it is: perplexity, and how often the likeliest token agrees",
    "constrain": "constrained decoding: right, complete, fast; xgrammar, llguidance and outlines_core beside it",
    "language": "programs as one request, against gen by gen over HTTP and the openai client: times, tokens, requests",
    "live_states": "thousands of programs that wait at a time: memory of each, and no threads",
    "peers": "on this processor: llama.cpp, OpenVINO GenAI, vLLM and transformers on the same work, in turn",
    "gpu": "on a GPU: ceilings, kernels, decode steps, and vLLM, SGLang and others on the same work",
}

_IN_FOLDERS = {
    "constrain": "constrain.constrain",
    "gpu": "gpu.gpu",
    "language": "language.language",
    "live_states": "language.live_states",
    "peers": "peers.peers",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listing = "\n".join(f"  {name:12} {text}" for name, text in _BENCHMARKS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"benchmarks:\n{listing}\n\nbough bench NAME --help tells the options of one."
    parser.add_argument("name", choices=_BENCHMARKS, metavar="NAME", help="which benchmark")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")


def module_of(name: str) -> ModuleType:
    """Imports the benchmark `name`: a module of benchmarks/, or the module of that name in a folder of that name.

    Raises:
        BoughError: it needs torch or transformers, which is not installed.
    """
    path = _IN_FOLDERS.get(name, name)
    try:
        return importlib.import_module(f"bough.benchmarks.{path}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        message = f'benchmark {name} needs {error.name}, which is not installed: pip install "bough[{error.name}]"'
        raise BoughError(message) from None


def read(name: str, words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Imports the benchmark `name` and parses its options, or ends the process with a line about one that is wrong.

    Raises:
        BoughError: as `module_of`.
    """
    module = module_of(name)
    description, _, more = (module.__doc__ or "").partition("\n\n")
    parser = CommandParser(prog=f"bough bench {name}", description=description, epilog=more)
    module.add_arguments(parser)
    return module, parser.parse_args(words)


def run(arguments: argparse.Namespace) -> int:
    module, options = read(arguments.name, arguments.options)
    status: int = module.run(options)
    return status
