"""How to install the optional packages. The distribution has another name than the package it installs."""

from __future__ import annotations

DISTRIBUTION = "trajectory-balance"
"""The name that pip knows. (`tba` on the package index is another project.)"""

EXTRAS = frozenset({"wandb", "trackio", "trl", "lora", "plots", "embeddings", "reasoning-gym", "smollm2"})
"""The optional dependencies that pyproject.toml lists for users."""


def install_hint(extra: str) -> str:
    """The command that adds an extra to an installation, from any folder and also where a clone is installed."""
    assert extra in EXTRAS, f"pyproject.toml has no extra {extra!r}"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
