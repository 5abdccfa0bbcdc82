"""`Runtime`: a server in a separate process that starts and ends with this one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import weakref
from collections import deque
from typing import Any

from ..diagnostics.errors import BackendError
from .endpoint import RuntimeEndpoint
from .server_args import ServerArgs

_QUIET = ("error", "critical", "fatal", "warning")
_NUM_LINES = 50
_STOP_TIMEOUT_S = 30.0


class Runtime(RuntimeEndpoint):
    """A bough server in a process of its own on this machine, ready when made. Close it with `shutdown`.

    log_level        "info" shows what the server says; with "error" it is shown only if the server does not start
    launch_timeout   seconds in which it must be ready
    server_args      instead of arguments
    arguments        those of `ServerArgs`; without a `port`, a free one is taken

    >>> runtime = Runtime(model_path="smollm2-135m")
    >>> bough.set_default_backend(runtime)
    >>> runtime.shutdown()

    Raises:
        RequestError: an argument is unknown, or asks for what is not there.
        BackendError: the server did not start.
    """

    def __init__(
        self,
        log_level: str = "error",
        launch_timeout: float = 300.0,
        *,
        server_args: ServerArgs | None = None,
        **arguments: Any,
    ) -> None:
        self.server_args = server_args or ServerArgs(log_level=log_level, **arguments)
        process = _Process(self.server_args)
        self._stop = weakref.finalize(self, process.stop)  # at the interpreter's end at the latest
        try:
            self.url = process.address(launch_timeout)
            super().__init__(self.url, self.server_args.api_key)
        except BaseException:
            self.shutdown()
            raise
        self.pid: int | None = process.pid

    @property
    def generate_url(self) -> str:
        """Address to which programs are posted."""
        return f"{self.url}/v1/programs"

    def shutdown(self) -> None:
        """Ends the server. Twice is fine."""
        self._stop()
        self.pid = None
        if hasattr(self, "url"):
            super().close()

    def close(self) -> None:
        self.shutdown()


class _Process:
    """The server's process. Its output is read to the end, so that it never waits for that."""

    def __init__(self, args: ServerArgs) -> None:
        self._lines: deque[str] = deque(maxlen=_NUM_LINES)
        self._shown = args.log_level.lower() not in _QUIET
        self._ready = threading.Event()
        self._address: str | None = None
        environment = {**os.environ} | ({"BOUGH_API_KEY": args.api_key} if args.api_key else {})
        self._process = subprocess.Popen(_command(args), stderr=subprocess.PIPE, text=True, env=environment)
        self.pid = self._process.pid
        threading.Thread(target=self._read, name="bough-runtime-log", daemon=True).start()

    def address(self, timeout_s: float) -> str:
        """Waits until the server listens, and returns its address."""
        if not self._ready.wait(timeout_s):
            raise BackendError(
                f"the server was not ready within {timeout_s:g} s:\n{self._said()}", code="launch_failed"
            )
        if self._address is None:
            raise BackendError(f"the server did not start:\n{self._said()}", code="launch_failed")
        return self._address

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with contextlib.closing(self._process.stderr) as lines:
            for line in lines:
                self._lines.append(line)
                if self._shown:
                    sys.stderr.write(line)
                if (found := re.search(r"listening on (http://\S+)", line)) is not None:
                    self._address = found[1]
                    self._ready.set()
        self._ready.set()

    def _said(self) -> str:
        return "".join(self._lines)


def _command(args: ServerArgs) -> list[str]:
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--host", args.host, "--port", str(args.port)]
    if args.served_model_name is not None:
        command += ["--served-model-name", args.served_model_name]
    for name, value in args.engine_options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command.append(f"--{flag}={value}")
    return command
