"""Makes of a GGUF file a folder as transformers has it: weights in bfloat16, tokenizer. Run by its path by a peer.

python peer_convert.py MODEL.gguf FOLDER
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def convert(source: Path, target: Path) -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
