"""Models that serve a reward, loaded in the reward process."""

from __future__ import annotations

from typing import Any


def from_pretrained(what: str, path: str, auto_class: str, *, padding: str | None = None) -> tuple[Any, Any]:
    """A frozen model and its tokenizer, made able to pad on the side that is named. TbaError says what it was for."""
    import transformers

    from tba.loading import load_weights, told_in_one_line

    transformers.utils.logging.disable_progress_bar()
    with told_in_one_line(f"{what} {path!r} cannot be loaded"):
        model = load_weights(getattr(transformers, auto_class), path, f"{what} {path!r}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if padding is not None:
        tokenizer.padding_side = padding
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return model.requires_grad_(False), tokenizer
