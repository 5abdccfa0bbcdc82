"""The process that loads changed files: one after another, within a limit of memory, each under the eyes of `fuzz`.

Reads lines of JSON, `[kind, seed]`, from its input; answers each with a line, `[verdict, note]`.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

from bough.runtime.engine.engine import Engine
from bough.runtime.load.load_torch import make_engine
from bough.runtime.load.start import start_engine
from bough.runtime.models.load import LoadedModel, load_model
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, ModelError, RequestError
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

from .gguf_image import GGUFImage, change_image
from .mutate import change_json, change_safetensors
from .originals import gguf_image, write_folders

_NUM_TOKENS = 3
_TEXT = "hello world, 12345 <added> <|im_end|> é \u3042"
_CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": _TEXT}]


class Trials:
    """Tries changed files of one kind after another; everything that is written lies in `folder`."""

    def __init__(self, folder: Path, *, native: bool = False) -> None:
        self._root = folder
        self._folders = write_folders(folder / "originals")
        self._image = gguf_image()
        self._native = native
        self._loaded: dict[str, LoadedModel] = {}
        self.kinds: dict[str, Callable[[random.Random], None]] = {
            "gguf": self._try_gguf,
            "safetensors": self._try_safetensors,
            "tokenizer": self._try_tokenizer,
            "config": self._try_config,
        }

    def run(self, kind: str, seed: int) -> tuple[str, str]:
        """Loads the file of a seed: "works", "refused" with the error, or "broken" with what went wrong."""
        rng = random.Random(f"{kind} {seed}")
        try:
            self.kinds[kind](rng)
        except ModelError as error:
            return _judge(error.message)
        except Exception as error:  # noqa: BLE001  anything else is a finding
            return "broken", _shown(error)
        except BaseException as error:  # what the tokenizers library raises where it panics
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return "broken", _shown(error)
        return "works", ""

    def _try_gguf(self, rng: random.Random) -> None:
        path = self._root / "model.gguf"
        image: GGUFImage = deepcopy(self._image)
        path.write_bytes(change_image(rng, image))
        self._start(path)

    def _try_safetensors(self, rng: random.Random) -> None:
        with self._copy(rng.choice(("plain", "gptq"))) as folder:
            path = folder / "model.safetensors"
            path.write_bytes(change_safetensors(rng, path.read_bytes()))
            self._start(folder)

    def _try_config(self, rng: random.Random) -> None:
        with self._copy(rng.choice(("plain", "gptq", "mistral"))) as folder:
            path = folder / rng.choice(("config.json",) * 7 + ("generation_config.json",))
            path.write_bytes(change_json(rng, path.read_bytes()))
            self._start(folder)

    def _try_tokenizer(self, rng: random.Random) -> None:
        name = rng.choice(("plain", "pieces"))
        with self._copy(name) as folder:
            path = folder / rng.choice(("tokenizer.json",) * 4 + ("tokenizer_config.json",))
            path.write_bytes(change_json(rng, path.read_bytes()))
            tokenizer = load_tokenizer(folder)
            if name not in self._loaded:
                self._loaded[name] = load_model(self._folders[name])
            _generate(make_engine(_config(folder), self._loaded[name], tokenizer))
            _use(tokenizer)

    @contextlib.contextmanager
    def _copy(self, name: str) -> Iterator[Path]:
        folder = self._root / "model"
        shutil.copytree(self._folders[name], folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _start(self, path: Path) -> None:
        engine = start_engine(_config(path, native=self._native and path.is_dir()))
        tokenizer = engine.tokenizer
        _generate(engine)
        _use(tokenizer)


def _config(path: Path, *, native: bool = False) -> EngineConfig:
    return EngineConfig(
        model=str(path), num_pages=256, page_size=1, device="cpu", max_num_seqs=2, max_batch_tokens=64,
        quantization="int8" if native else None,
    )  # fmt: skip


def _generate(engine: Engine) -> None:
    """A few tokens; a request may fail, but only with an error of its own."""
    heard: list[RequestOutput] = []
    try:
        prompt = tuple(engine.tokenizer.encode_prompt("hello")) or (1,)
        sampling = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True)
        try:
            engine.submit(Request(id="r", prompt=prompt, sampling=sampling), heard.append)
        except RequestError:
            return
        for _ in range(100):
            if engine.idle:
                break
            engine.step()
        last = heard[-1]
        if last.finish is None:
            raise AssertionError("the request has not ended")
        if last.finish.error is not None and last.finish.error.code == "internal_error":
            raise AssertionError(f"the request failed: {last.finish.error.message}")
    finally:
        engine.close()


def _use(tokenizer: Tokenizer) -> None:
    """Texts to ids and back, chats, and the vocabulary as grammars see it."""
    with contextlib.suppress(RequestError):
        tokenizer.decode(tokenizer.encode_prompt(_TEXT))
    with contextlib.suppress(RequestError):
        tokenizer.decode(tokenizer.encode_chat(_CHAT), skip_special_tokens=False)
    with contextlib.suppress(RequestError):
        tokenizer.chat.role_pieces(("system",), "user")
    vocabulary = tokenizer.vocabulary(258)
    if len(vocabulary.tokens) > 258:
        raise AssertionError("more tokens than the model has")


def _judge(message: str) -> tuple[str, str]:
    """A refusal has to be one line of a readable length."""
    if not message or "\n" in message or len(message) > 1000:
        return "broken", f"a message that is no line: {message[:2000]!r}"
    return "refused", message


def _shown(error: BaseException) -> str:
    """The error, and the last places in the code that it came through."""
    kind = type(error).__name__
    code = f" ({error.code})" if isinstance(error, BoughError) else ""
    places = traceback.extract_tb(error.__traceback__)[-4:]
    trail = " > ".join(f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places)
    return f"{kind}{code}: {str(error)[:300]} [{trail}]"


def main(memory: int, native: bool) -> None:
    """Serves trials until the input ends; more memory than `memory` bytes is not given."""
    with tempfile.TemporaryDirectory(prefix="bough-fuzz-") as folder:
        trials = Trials(Path(folder), native=native)
        for kind in trials.kinds:  # imports, and what is made once
            trials.run(kind, -1)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        print('["ready", ""]', flush=True)
        for line in sys.stdin:
            print(json.dumps(trials.run(*json.loads(line))), flush=True)
