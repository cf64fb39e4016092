"""Content as an author wrote it to the text and the tokens a model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from tba.tasks.base import Content, Encode
from tba.types import TbaError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_CHAT_TEMPLATE = (
    "the model has no chat template, and prompts are chat messages: give prompts as strings (task.prompt_style = "
    "'plain' where the task has it), a model that has one, or a template of your own (model.chat_template)"
)


def encoder(tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None) -> Encode:
    """Plain text as it is, with what the tokenizer adds; messages through the chat template, with nothing added. The
    template is told `template_kwargs` besides the messages."""

    def encode(content: Content) -> tuple[str, tuple[int, ...]]:
        if isinstance(content, str):
            return content, tuple(tokenizer(content).input_ids)
        if tokenizer.chat_template is None:
            raise TbaError(NO_CHAT_TEMPLATE)
        try:
            text = tokenizer.apply_chat_template(
                content, tokenize=False, add_generation_prompt=True, **(template_kwargs or {})
            )
        except (TemplateError, TypeError) as error:
            raise TbaError(
                f"the chat template cannot write a prompt: {first_line(error)}; check model.chat_template and "
                "model.chat_template_kwargs"
            ) from error
        return str(text), tuple(tokenizer(str(text), add_special_tokens=False).input_ids)

    return encode
