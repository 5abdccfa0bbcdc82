"""Checks an installed wheel, where no model need be: the CPU library is in it and runs, schemas compile without torch.

    python scripts/check_wheel.py

`make wheels` runs it in a new environment for each wheel.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bough.kernels.native.library import load_library

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer", "minimum": 7}}, "required": ["n"]}'
VALUE = '{"n": 8}'


def main() -> int:
    library = load_library()
    if library is None:
        print("the CPU library was not compiled, or does not run on this processor", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        schema, value = Path(folder, "schema.json"), Path(folder, "value.json")
        schema.write_text(SCHEMA)
        value.write_text(VALUE)
        command = [sys.executable, "-m", "bough", "schema", "check", str(schema), str(value)]
        status = subprocess.run(command, check=False).returncode
    if status == 0:
        print(f"the CPU library computes with {library.instructions}")
    return status


if __name__ == "__main__":
    sys.exit(main())
