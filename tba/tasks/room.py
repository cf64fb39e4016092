"""Room in a model's context: what is left for prompts when a response has its own."""

from __future__ import annotations

from tba.types import TbaError


def room_for_prompts(context: int, max_new_tokens: int) -> int:
    """Tokens that a prompt may have. TbaError if there are none."""
    if max_new_tokens >= context:
        raise TbaError(
            f"engine.max_new_tokens = {max_new_tokens} leaves no room for a prompt in the model's context of {context} "
            "tokens: lower engine.max_new_tokens"
        )
    return context - max_new_tokens


def no_prompt_fits(context: int, max_new_tokens: int) -> TbaError:
    return TbaError(
        f"no prompt fits: the model's context is {context} tokens, and engine.max_new_tokens = {max_new_tokens} of "
        "them are kept for the response; lower engine.max_new_tokens, or shorten the prompts"
    )
