"""The table of docs/coming-from.md: every name of another tool that an error message answers, with ours."""

from __future__ import annotations

from tba.config.other_names import OTHER_NAMES, WITHOUT_EQUAL


def names_table() -> str:
    rows = [(f"`{ours}`", ", ".join(f"`{name}`" for name in others)) for ours, others in OTHER_NAMES.items()]
    lines = ["| here | elsewhere |", "| --- | --- |", *(f"| {ours} | {others} |" for ours, others in sorted(rows))]
    lines += ["", "These have no counterpart:", "", "| elsewhere | here |", "| --- | --- |"]
    lines += [f"| `{name}` | {instead} |" for name, instead in WITHOUT_EQUAL.items()]
    return "\n".join(lines) + "\n"
