"""The generic path refuses by name what paged attention would compute wrongly, and runs no code of a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from bough.runtime.models.load import load_model
from bough.runtime.protocol.errors import ModelError

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# name: model type, options, what the refusal says
UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention sinks": ("gpt_oss", {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
    "alibi": ("bloom", {"n_layer": 2, "n_head": 4}, "0 of its 2 layers"),
    "no attention interface": ("falcon", {}, "0 of its 2 layers"),
    "state space": ("mamba", {"state_size": 4}, "0 of its 2 layers"),
    "not causal": ("t5", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}, "not a causal language model"),
}


def edit_config(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_model_is_refused(name: str, tmp_path: Path, save_checkpoint: Any) -> None:
    model_type, options, reason = UNFIT[name]
    config: Any = transformers.CONFIG_MAPPING[model_type](**(SMALL | options))
    if model_type == "t5":
        transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    else:
        save_checkpoint(config, tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path, dtype="float32")


def test_different_numbers_are_refused(tmp_path: Path, save_checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does something to its logits that no table here knows is found out when it is loaded."""
    save_checkpoint(transformers.PhiConfig(**SMALL), tmp_path)
    original = transformers.PhiForCausalLM.forward

    def shifted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        output = original(self, *arguments, **keywords)
        output.logits[:, -1, 3] += 0.1
        return output

    monkeypatch.setattr(transformers.PhiForCausalLM, "forward", shifted)
    with pytest.raises(ModelError, match=r"logits differ by \d.*%"):
        load_model(tmp_path, dtype="float32")


@pytest.fixture
def phi_folder(tmp_path: Path, save_checkpoint: Any) -> Path:
    folder = tmp_path / "phi"
    save_checkpoint(transformers.PhiConfig(**SMALL), folder)
    return folder


def test_auto_map_is_not_run(phi_folder: Path) -> None:
    marker = phi_folder / "marker"
    code = f"open({str(marker)!r}, 'w').close()\nfrom transformers import PhiConfig as A, PhiForCausalLM as B\n"
    (phi_folder / "evil.py").write_text(code)
    edit_config(phi_folder, auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.B"})
    assert load_model(phi_folder).config.architecture == "phi"
    edit_config(phi_folder, model_type="homemade")
    with pytest.raises(ModelError, match="homemade"):
        load_model(phi_folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "longrope"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"hidden_size": 1 << 16, "intermediate_size": 1 << 18}, "the checkpoint has"),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"num_hidden_layers": 1}, "unexpected"),
        ({"intermediate_size": 40}, "phi"),
    ],
)
def test_bad_config_is_refused(phi_folder: Path, changes: dict[str, Any], blamed: str) -> None:
    edit_config(phi_folder, **changes)
    with pytest.raises(ModelError, match=blamed):
        load_model(phi_folder)


def test_pickled_weights_are_refused(phi_folder: Path) -> None:
    (phi_folder / "model.safetensors").rename(phi_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        load_model(phi_folder)


def test_our_kernels_folder_does_not_shadow(phi_folder: Path) -> None:
    """A program started in the checkout has our `kernels` on its path, where transformers looks for another."""
    root = Path(load_model.__code__.co_filename).resolve().parents[2]
    program = (
        "import sys; from bough.runtime.models.load import load_model; "
        f"load_model({str(phi_folder)!r}); print(sys.modules.get('kernels'))"
    )
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=root)
    assert (run.returncode, run.stdout.strip()) == (0, "None"), run.stderr
