"""What bough uses of greenlet, which brings no types."""

from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Any

class GreenletExit(BaseException): ...
class error(Exception): ...

class greenlet:
    dead: bool
    parent: greenlet
    gr_context: Context | None

    def __init__(self, run: Callable[..., Any] | None = None, parent: greenlet | None = None) -> None: ...
    def switch(self, *args: Any) -> Any: ...
    def throw(
        self, kind: type[BaseException], error: BaseException | None = None, traceback: TracebackType | None = None
    ) -> Any: ...

def getcurrent() -> greenlet: ...
