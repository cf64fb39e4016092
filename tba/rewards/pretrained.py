"""Models that serve a reward, loaded in the reward process."""

from __future__ import annotations

from typing import Any

from tba.types import TbaError


def from_pretrained(setting: str, path: str, auto_class: str, *, padding: str) -> tuple[Any, Any]:
    """A model in evaluation mode and its tokenizer, which can pad. TbaError names the setting."""
    import torch
    import transformers
    from safetensors import SafetensorError

    transformers.utils.logging.disable_progress_bar()
    try:
        model = getattr(transformers, auto_class).from_pretrained(path, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side=padding)
    except (OSError, ValueError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TbaError(f"{setting} = {path!r} cannot be loaded: {reason}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    model.requires_grad_(False)
    return model.eval(), tokenizer
