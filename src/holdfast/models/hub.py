"""The hub that timm's weights come from: whether it can be reached is asked once, not six times over half a minute."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

PATIENCE = 5.0
"""Seconds that the hub has to take a connection."""


def reachable() -> bool:
    """Whether the hub takes connections; taken for granted behind a proxy, which alone would know."""
    address = urlsplit(constants.ENDPOINT)
    if address.scheme in getproxies() or "all" in getproxies():
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False


@contextmanager
def cache_alone_if_unreachable() -> Iterator[None]:
    """Files in the cache serve also where the hub cannot be reached; for others the error comes at once."""
    if constants.HF_HUB_OFFLINE or reachable():
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        lost = f"the files are not in the cache {constants.HF_HUB_CACHE} (HF_HOME names another)"
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached, and {lost}") from error
    finally:
        constants.HF_HUB_OFFLINE = False
