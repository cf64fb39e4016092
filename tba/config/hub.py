"""Whether the model hub can be reached, asked by its name. Libraries that ask for a file retry for half a minute."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_HUB = "https://huggingface.co"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_OFFLINE = "HF_HUB_OFFLINE"
_READERS = ("huggingface_hub.constants", "datasets.config")
"""Modules that read the variable when they are imported, and keep it under its name."""


def why_unreachable() -> str | None:
    """What the system says if it does not know the hub's address; None if it does, or where others look it up."""
    if any(os.environ.get(name) for name in _PROXIES):
        return None
    address = urlsplit(os.environ.get("HF_ENDPOINT") or _HUB)
    try:
        socket.getaddrinfo(address.hostname, address.port or address.scheme)
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextmanager
def hub_if_reachable() -> Iterator[str | None]:
    """Within, libraries do not ask a hub that cannot be reached: they have what was downloaded before. Gives why."""
    why = None if os.environ.get(_OFFLINE) else why_unreachable()
    if why is None:
        yield None
        return
    before = {name: getattr(sys.modules[name], _OFFLINE) for name in _READERS if name in sys.modules}
    os.environ[_OFFLINE] = "1"
    for name in before:
        setattr(sys.modules[name], _OFFLINE, True)
    try:
        yield why
    finally:
        del os.environ[_OFFLINE]
        for name in _READERS:
            if name in sys.modules:
                setattr(sys.modules[name], _OFFLINE, before.get(name, False))
