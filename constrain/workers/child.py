"""Child processes: they get only the environment variables that they need, and end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

_KNOWN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|COLUMNS|LINES|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TEMP|TMP|XDG_\w+|VIRTUAL_ENV|CONDA_\w+"
    r"|PYTHON\w+|LD_\w+|DYLD_\w+|MALLOC_\w+|GLIBC_\w+|(A|L|T|UB)SAN_\w+|COVERAGE_\w+|CC|CXX|CPATH|LIBRARY_PATH"
    r"|OMP_\w+|GOMP_\w+|KMP_\w+|MKL_\w+|BLIS_\w+|OPENBLAS_\w+|NUMEXPR_\w+|VECLIB_\w+|RAYON_\w+|RUST_\w+"
    r"|CUDA\w*|CUBLAS\w*|CUDNN\w*|NVIDIA_\w+|NCCL_\w+|HIP_\w+|ROCM_\w+|ROCR_\w+|HSA_\w+|TORCH\w*|PYTORCH_\w+|TRITON_\w+"
    r"|TOKENIZERS_\w+|TRANSFORMERS_\w+|SAFETENSORS_\w+|HF_\w+|HUGGINGFACE_\w+|BOUGH_\w+"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|all|no)_proxy",
    re.IGNORECASE,
)
"""Environment variables of the system, of Python, of the libraries in use and of bough."""

_SECRET = re.compile(
    r"(^|_)(API_?KEYS?|ACCESS_?KEY|PRIVATE_?KEY|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE
)
_PR_SET_PDEATHSIG = 1


def child_environment(*, keep: Collection[str] = ()) -> dict[str, str]:
    """Returns the environment variables that are known to matter to a child, and those in `keep`. Others may be
    secrets, whatever their names."""
    return {name: value for name, value in os.environ.items() if name in keep or _is_known(name)}


def _is_known(name: str) -> bool:
    return _KNOWN.fullmatch(name) is not None and _SECRET.search(name) is None


def start_child(
    module: str,
    arguments: Sequence[str] = (),
    *,
    keep: Collection[str] = (),
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts `python -m module PARENT arguments...`, which must call `die_with_parent(PARENT)`.

    Its environment is that of `child_environment` and `variables`. `options` are those of `subprocess.Popen`. No code
    of this process runs between fork and exec, so locks held by its threads do not matter. Raises OSError: no process
    or thread can be started.
    """
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments]
    environment = {**child_environment(keep=keep), **(variables or {})}
    started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            process = subprocess.Popen(command, env=environment, **options)
        except Exception as error:  # noqa: BLE001  raised to the caller of `start_child`
            started.put(error)
            return
        started.put(process)
        if sys.platform == "linux":
            # Linux takes the thread that started a child for its parent, so this one lives as long as the child.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    try:
        threading.Thread(target=run, name="bough-parent", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    outcome = started.get()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def die_with_parent(parent: int) -> None:
    """Lets the system kill this process when `parent` ends, even while it is stopped. Ignores SIGINT and SIGTERM, which
    a terminal or a supervisor may send to the whole group: the parent ends its children in order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _tie(parent)


def _tie(parent: int) -> None:
    """Lets the system kill this process, or the program that replaces it, when `parent` ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        sys.exit(1)


def tied(command: Sequence[str]) -> list[str]:
    """Returns a command that runs `command` and is killed when the thread that starts it ends, or its process; so the
    thread must stay alive. Only Linux supports this."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _run_tied(parent: int, command: list[str]) -> NoReturn:
    """Replaces this process by `command`, with default signal handlers: Python ignores some signals."""
    _tie(parent)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _run_tied(int(sys.argv[1]), sys.argv[2:])
