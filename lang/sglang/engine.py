"""`Engine`: SGLang's in-process engine, which is also a backend of programs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.local import LocalBackend
from .generate import Params, agenerate, generate
from .server_args import ServerArgs


class Engine(LocalBackend):
    """A model in this process, for single prompts and for programs.

    server_args   instead of arguments
    arguments     those of `ServerArgs`

    >>> with Engine(model_path="smollm2-135m") as engine:
    ...     engine.generate("The capital of France is", {"max_new_tokens": 4, "temperature": 0})["text"]
    ...     program.run(backend=engine)

    Raises:
        RequestError: an argument is unknown, or asks for what is not there.
    """

    def __init__(self, *, server_args: ServerArgs | None = None, **arguments: Any) -> None:
        if server_args is not None and arguments:
            raise TypeError("give server_args or arguments, not both")
        self.server_args = server_args or ServerArgs(**arguments)
        super().__init__(**{"model": self.server_args.model_path, **self.server_args.engine_options})

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        input_ids: None = None,
        image_data: None = None,
        *,
        stream: bool = False,
        **others: Any,
    ) -> Any:
        """The answer to a prompt, as `{"text": ..., "meta_info": {...}}`, or a list of answers to a list of prompts.

        stream   an iterator of the answer to one prompt, each with all text so far
        others   `return_logprob`, `logprob_start_len`, `top_logprobs_num`: one for all prompts, or one each

        Raises:
            RequestError: something that is asked for cannot be had.
            ProgramError: a prompt failed.
        """
        return generate(
            self, prompt, sampling_params, stream=stream, input_ids=input_ids, image_data=image_data, **others
        )

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        stream: bool = False,
        **others: Any,
    ) -> Any:
        """The same for tasks; with `stream`, what is awaited is an async iterator."""
        return await agenerate(self, prompt, sampling_params, stream=stream, **others)

    def get_server_info(self) -> dict[str, Any]:
        """Returns what the engine says of itself."""
        return self.server_info()

    def shutdown(self) -> None:
        """The same as `close`."""
        self.close()
