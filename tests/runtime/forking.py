"""Work in a child forked from the tests' process."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

LIMIT_S = 20


def in_child(work: Callable[[], str]) -> str:
    """Returns what `work` returns in a forked child, or the type and the text of what it raises; "" if it hangs."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the process has threads: what these tests are about
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not as pytest-timeout handles it
        signal.alarm(LIMIT_S)
        try:
            os.write(writer, work().encode())
        except BaseException as error:  # noqa: BLE001  it is told
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read().decode()
    os.waitpid(child, 0)
    return said
