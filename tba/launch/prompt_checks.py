"""What the files of a model say about prompts, before it is loaded: the chat template, and room in the context.

Loads no torch. A model of the hub is asked for the same files, which the run would download anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tba.config.hub import why_unreachable
from tba.policy.names import file_of_hub, model_directory
from tba.tasks.base import Content, Problem
from tba.tasks.encoding import NO_CHAT_TEMPLATE
from tba.tasks.room import no_prompt_fits, room_for_prompts
from tba.types import TbaError

_ADDED = 8
"""More tokens than a tokenizer adds to a text. What a chat template adds, only the run can tell."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def check_chat_template(model: str, problems: Sequence[Problem]) -> None:
    """TbaError if there are chat prompts and the model's tokenizer has no template for them."""
    if not any(problem.conversational for problem in problems):
        return
    settings = _file(model, "tokenizer_config.json")
    if settings is None or any(_file(model, name) for name in _TEMPLATES):
        return
    try:
        has_template = bool(json.loads(settings.read_text("utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return  # whoever loads the tokenizer tells what is wrong with it
    if not has_template:
        raise TbaError(NO_CHAT_TEMPLATE)


def check_room(model: str, model_config: Mapping[str, Any], max_new_tokens: int, problems: Sequence[Problem]) -> None:
    """TbaError if no prompt can fit the model's context beside a response. Where some may fit, the run will tell."""
    context = context_of(model_config)
    if context is None:
        return
    room = room_for_prompts(context, max_new_tokens)
    # A token has at least one byte, so most data is known to have a prompt that fits without being tokenized.
    shortest = min((sum(map(len, map(str.encode, _texts(p.content)))) for p in problems), default=0)
    if shortest + _ADDED <= room:
        return
    file = _file(model, "tokenizer.json")
    if file is not None and _fewest_tokens(file, [problem.content for problem in problems]) > room:
        raise no_prompt_fits(context, max_new_tokens)


def context_of(model_config: Mapping[str, Any]) -> int | None:
    """Tokens of a model's context by its configuration; None if it does not say."""
    for settings in (model_config, model_config.get("text_config") or {}):
        for name in ("max_position_embeddings", "n_positions"):
            if isinstance(settings.get(name), int):
                return int(settings[name])
    return None


def _texts(content: Content) -> list[str]:
    return [content] if isinstance(content, str) else [message["content"] for message in content]


def _fewest_tokens(file: Path, contents: Sequence[Content]) -> int:
    """At least as many as the shortest prompt has. What a chat template adds is not counted."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    return min(
        sum(len(encoded.ids) for encoded in tokenizer.encode_batch(_texts(content), add_special_tokens=False))
        for content in contents
    )


def _file(model: str, name: str) -> Path | None:
    """A file of a model's folder, or of the hub; None if it cannot be had."""
    folder = Path(model_directory(model)).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    return file_of_hub(model, name, is_reachable=why_unreachable() is None)
