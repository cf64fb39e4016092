"""Content as an author wrote it to the text and the tokens a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tba.tasks.base import Content, Encode
from tba.types import TbaError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_CHAT_TEMPLATE = (
    "the model has no chat template, and prompts are chat messages: give prompts as strings (task.prompt_style = "
    "'plain' where the task has it), or a model that has one"
)


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Plain text as it is, with what the tokenizer adds; messages through the chat template, with nothing added."""

    def encode(content: Content) -> tuple[str, tuple[int, ...]]:
        if isinstance(content, str):
            return content, tuple(tokenizer(content).input_ids)
        if tokenizer.chat_template is None:
            raise TbaError(NO_CHAT_TEMPLATE)
        text = tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True)
        return str(text), tuple(tokenizer(str(text), add_special_tokens=False).input_ids)

    return encode
