"""Text and settings in the form of TensorBoard's own plugins. It is imported late, with TensorBoard itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text_summary(tag: str, markdown: str) -> Any:
    """Markdown for the tab of texts."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, markdown)


def settings_summary(settings: Mapping[str, Any]) -> Any:
    """The settings for the tab of hyperparameters, by which it compares runs."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    return hparams_pb(dict(_flat(settings)))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, (bool, int, float, str)) else str(value)
