"""`bough pull`: puts a model into the cache folder."""

from __future__ import annotations

import argparse

from ..runtime.checkpoints import fetch as pull
from .progress import LoadingBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a name (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    with LoadingBar() as bar:
        path = pull.pull(arguments.model, progress=bar)
    print(path)
    return 0
