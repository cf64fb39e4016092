"""Models that serve a reward, loaded in the reward process."""

from __future__ import annotations

from typing import Any

from tba.types import TbaError


def from_pretrained(what: str, path: str, auto_class: str, *, padding: str | None = None) -> tuple[Any, Any]:
    """A frozen model and its tokenizer, made able to pad on the side that is named. TbaError says what it was for."""
    import torch
    import transformers
    from safetensors import SafetensorError

    transformers.utils.logging.disable_progress_bar()
    try:
        model = getattr(transformers, auto_class).from_pretrained(path, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TbaError(f"{what} {path!r} cannot be loaded: {reason}") from None
    if padding is not None:
        tokenizer.padding_side = padding
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return model.eval().requires_grad_(False), tokenizer
