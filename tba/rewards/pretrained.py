"""Models that serve a reward, loaded in the reward process."""

from __future__ import annotations

from typing import Any


def from_pretrained(
    what: str, path: str, auto_class: str, *, device: str, device_setting: str, padding: str | None = None
) -> tuple[Any, Any]:
    """A frozen model on its device, and its tokenizer, made able to pad on the side that is named.

    TbaError says what it was for, or which setting names a device that is not there.
    """
    import transformers

    from tba.policy.devices import device_of, moved
    from tba.policy.loading import load_weights, told_in_one_line

    place = device_of(device, device_setting)
    transformers.utils.logging.disable_progress_bar()
    with told_in_one_line(f"{what} {path!r} cannot be loaded"):
        model = load_weights(getattr(transformers, auto_class), path, f"{what} {path!r}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if padding is not None:
        tokenizer.padding_side = padding
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return moved(model.requires_grad_(False), place), tokenizer
