"""`tba export`: a trained model as a folder that transformers and vLLM load, in safetensors and in the type wanted.

A run's checkpoints are such folders already, in float32. This one stands alone: it can be moved, shared and served.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tba.policy.names import read_model_config
from tba.runs.model_of import model_of
from tba.types import TbaError

Form = Literal["merged", "adapter"]
DTYPES = ("float32", "bfloat16", "float16")
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be told."""


def export(
    source: str,
    output: Path,
    *,
    form: Form = "merged",
    dtype: str | None = None,
    best: bool = False,
    trust_remote_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> str:
    """Write a model, or its adapter alone, into a new folder; the line that serves it. `tell` hears which was taken.

    `source` is a run, which means its newest checkpoint, or with `best` its best model; a checkpoint; or any model.
    `dtype` is the type of the weights; None: that of the source.
    """
    if dtype is not None and dtype not in DTYPES:
        raise TbaError(f"--dtype = {dtype!r} is not known: one of {', '.join(DTYPES)}")
    if output.exists() or output.is_symlink():
        raise TbaError(f"{output} exists already: export into another folder, or remove it")
    chosen = model_of(source, best=best)
    if chosen.note:
        tell(chosen.note)
    model = chosen.path
    adapter = Path(model).parent / "adapter"
    if form == "adapter" and not (Path(model).is_dir() and (adapter / "adapter_config.json").is_file()):
        raise TbaError(
            f"{source} has no adapter of its own: only checkpoints of a run with model.lora_rank have one; leave "
            "--adapter out to export the whole model"
        )
    try:
        output.absolute().parent.mkdir(parents=True, exist_ok=True)
        # Beside the place, so that the rename at the end is one step: an export that is interrupted leaves no half.
        with tempfile.TemporaryDirectory(prefix=".export-", dir=output.absolute().parent) as scratch:
            written = Path(scratch) / "model"
            if form == "adapter":
                _write_adapter(adapter, model, written, dtype)
            else:
                _write_model(model, written, dtype, trust_remote_code)
            os.replace(written, output)
    except OSError as error:
        raise TbaError(f"cannot write to {output}: {error.strerror or error}") from None
    return _serving(output, form)


def _write_model(model: str, folder: Path, dtype: str | None, trust_remote_code: bool) -> None:
    config = read_model_config(model, "model", trust_remote_code)
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    from tba.policy.policy import load_model, load_tokenizer

    loaded = load_model(
        model, attention="padded", trust_remote_code=trust_remote_code, dtype=dtype or str(stored).split(".")[-1]
    )
    loaded.save_pretrained(folder)
    load_tokenizer(model, trust_remote_code=trust_remote_code).save_pretrained(folder)


def _write_adapter(adapter: Path, model: str, folder: Path, dtype: str | None) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from tba.policy.policy import load_tokenizer

    folder.mkdir()
    config = (adapter / "adapter_config.json").read_text("utf-8")
    (folder / "adapter_config.json").write_text(config, "utf-8")
    tensors = load_file(adapter / "adapter_model.safetensors")
    if dtype is not None:
        tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    load_tokenizer(model).save_pretrained(folder)


def _serving(output: Path, form: Form) -> str:
    if form == "merged":
        return f"vllm serve {shlex.quote(str(output))}"
    config = json.loads((output / "adapter_config.json").read_text("utf-8"))
    rank = next((rank for rank in _LORA_RANKS if rank >= config["r"]), config["r"])
    return (
        f"vllm serve {shlex.quote(config['base_model_name_or_path'])} --enable-lora --max-lora-rank {rank} "
        f"--lora-modules {shlex.quote(f'{output.name}={output}')}"
    )
