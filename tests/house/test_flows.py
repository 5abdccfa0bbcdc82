"""scripts/flows.py counts the package's own functions, on every thread, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import runpy, threading
flows = runpy.run_path({script!r})
import bough
bough.gen("warm", int)
profiler = flows["Profiler"]()
def gen():
    bough.gen("x", int)
    class Own:
        pass
    return [i for i in range(3)]
gen()
with profiler.record() as trace:
    gen()
    here = dict(trace.figures())
    thread = threading.Thread(target=gen)
    thread.start()
    thread.join()
    both = trace.figures()
gen()
assert trace.figures() == both
assert here["threads"] == 1 and both["threads"] == 2
assert here["files"] == both["files"] and here["functions"] == both["functions"]
assert 2 * here["calls"] == both["calls"]
print(*trace.files)
print(*{{code.co_name for _, _, code in trace.calls}})
print(*{{before for _, before, _ in trace.calls}})
"""


def test_own_functions_are_counted_on_all_threads(repository: Path) -> None:
    program = PROGRAM.format(script=str(repository / "scripts/flows.py"))
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files, functions, callers = (line.split(" ") for line in done.stdout.splitlines())
    assert "lang/api.py" in files and all((repository / file).is_file() for file in files)
    assert "gen" in functions and not any(name.startswith("<") and name != "<lambda>" for name in functions)
    assert set(callers) <= {"", *files}
