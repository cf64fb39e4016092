"""Every text of the help can be read alone: none leans on the text before it, and all are whole sentences."""

from __future__ import annotations

import re

import pytest

from tba.config.commands import COMMANDS
from tba.config.help import sections
from tba.supervised.options import KINDS
from tba.sweep.settings import SweepSettings

LEANING = (
    r"^(that|these|those|such|this|it|they)\b",
    r"\bthat (share|softmax|target|line|model|one)\b",
    r"\bof that\b",
    r"\bof such an?\b",
    r"\bafter that\b",
    r"\bso many\b",
    r"\bshort for it\b",
    r"\bis short for that\b",
    r"\b(the first )?of these only\b",
    r"(^|[;,.] )(empty|left out|off|0): ",
    r"\bwhat came out\b",
    r"\bmend\b",
)
SETTINGS = {f"{title}: {setting.name}": setting.meaning for title, _, listed in sections() for setting in listed}
OPTIONS = {
    f"tba {command} --{name}": " ".join((field.description or "").split())
    for command, options in KINDS.items()
    for name, field in options.model_fields.items()
}
OPTIONS |= {
    f"[sweep] {name}": " ".join((f.description or "").split()) for name, f in SweepSettings.model_fields.items()
}
TITLES = {title: about for title, about, _ in sections()}


def leaning(text: str) -> list[str]:
    return [pattern for pattern in LEANING if re.search(pattern, text, re.IGNORECASE)]


@pytest.mark.parametrize(
    "text",
    ["That share.", "Lowest temperature of such a batch.", "Sharpness of that softmax; 0 is uniform.",
     "What the model's scores are divided by after that.", "Train on the first so many of these only.",
     "Groups to collect before the first step; empty: `num_groups`."],
)  # fmt: skip
def test_texts_that_lean_on_others_are_found(text: str) -> None:
    """The guard of the guard."""
    assert leaning(text)


@pytest.mark.parametrize("name", [*SETTINGS, *OPTIONS, *TITLES])
def test_a_text_of_the_help_reads_alone(name: str) -> None:
    text = {**SETTINGS, **OPTIONS, **TITLES}[name]
    assert text.endswith("."), "a sentence"
    assert len(text.split()) >= 3, "that says something"
    assert not leaning(text), text


def test_so_do_the_lines_about_commands() -> None:
    lines = [about for command in COMMANDS.values() for _, about in (*command.uses, *command.options)]
    lines += [command.details for command in COMMANDS.values()]
    assert len(lines) > 10
    assert {line: leaning(line) for line in lines if leaning(line)} == {}
