"""Command lines of benchmarks: options by their whole names, and mistakes in one line."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ...runtime.protocol.errors import did_you_mean


class BenchmarkParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` whose options are never abbreviated, and whose errors are one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the words, and ends the process at those that are not known."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            hint = did_you_mean(left[0].partition("=")[0], self._option_string_actions)
            self.error(f"there is no option {left[0]}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())} ({self.prog} --help lists the options)\n")
