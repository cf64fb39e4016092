"""A hub that cannot be reached is not asked by libraries, and is asked again afterwards."""

from __future__ import annotations

import os
import socket
from typing import Any

import huggingface_hub.constants
import pytest

from tba.config.hub import hub_if_reachable, why_unreachable


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def addresses(monkeypatch: pytest.MonkeyPatch, *known: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Those that the system knows; the ones it was asked for are gathered."""
    asked: list[tuple[Any, ...]] = []

    def look_up(*address: Any) -> list[Any]:
        asked.append(address)
        if address not in known:
            raise socket.gaierror(-2, "no such name")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_a_hub_of_ones_own_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = addresses(monkeypatch, ("hub.here", 8080))
    assert why_unreachable() == "no such name"
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.here:8080/models")
    assert why_unreachable() is None
    assert asked == [("huggingface.co", "https"), ("hub.here", 8080)]


def test_behind_a_proxy_others_look_addresses_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = addresses(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert why_unreachable() is None
    assert asked == []


def test_libraries_are_offline_within_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)

    def fail() -> None:
        with hub_if_reachable() as why:
            assert why == "no such name"
            assert huggingface_hub.constants.HF_HUB_OFFLINE
            assert os.environ["HF_HUB_OFFLINE"] == "1"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert "HF_HUB_OFFLINE" not in os.environ


def test_one_that_can_be_reached_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch, ("huggingface.co", "https"))
    with hub_if_reachable() as why:
        assert why is None
        assert "HF_HUB_OFFLINE" not in os.environ


def test_who_is_offline_on_purpose_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with hub_if_reachable() as why:
        assert why is None
    assert os.environ["HF_HUB_OFFLINE"] == "1"
