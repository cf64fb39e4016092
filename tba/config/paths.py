"""Names that may be a path here or an id of the hub: which of them can only be a path, and what was meant by one."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_MOST_LISTED = 5


def missing_path(name: str) -> str | None:
    """What to say of a path where nothing is, after its name; None if the name may be an id of the hub.

    A name that starts or ends as paths do, has more parts than ids have, or whose first part is a folder here, is never
    looked for on the hub.
    """
    first, slash, _ = name.partition("/")
    looks_local = name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name
    if looks_local or (slash and Path(first).is_dir()):
        return f"is not there: {nearest(name)}"
    return None


def nearest(name: str) -> str:
    """The path that was probably meant by one where nothing is, as advice."""
    path = Path(name).expanduser()
    parent = next(
        folder for folder in (path.parent, *path.parent.parents) if folder.is_dir() or folder == folder.parent
    )
    wanted = path.relative_to(parent).parts[0] if path != parent else ""
    try:
        there = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    except OSError:
        there = []
    close = get_close_matches(wanted, there, 1)
    if close:
        return f"did you mean {str(parent / close[0])!r}?"
    if there and len(there) <= _MOST_LISTED and str(parent) != ".":
        return f"check the path; {parent} has {', '.join(there)}"
    return "check the path"
