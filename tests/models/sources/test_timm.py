"""Weights from the hub where it cannot be reached: from the cache, or an error at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from holdfast.errors import HoldfastError
from holdfast.models import build_model, open_model
from holdfast.models.sources.timm import cache_alone_if_unreachable, reachable

NAME = "test_resnet.r160_in1k"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An address of the hub at which nobody listens until the test does."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("endpoint")
def test_weights_that_are_nowhere_fail_at_once_and_say_what_to_do(cache: Path) -> None:
    started = time.monotonic()
    for spec, hint in ((f"timm:{NAME}", f"FILE --model timm:{NAME}"), ("hf-hub:someone/something", "check the name")):
        with pytest.raises(HoldfastError, match=r"http://127.0.0.1:\d+ cannot be reached.*HF_HOME") as caught:
            open_model(spec, shape=(3, 32, 32))
        assert str(cache) in str(caught.value)
        assert hint in str(caught.value)
    with pytest.raises(HoldfastError, match="cannot be reached.*--weights FILE"):
        build_model(f"timm:{NAME}", num_classes=2, pretrained=True)
    assert time.monotonic() - started < 10  # six tries each take 23 seconds
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.usefixtures("endpoint")
def test_weights_in_the_cache_serve(cache: Path) -> None:
    torch.manual_seed(3)
    published = timm.create_model(NAME).state_dict()
    home = cache / f"models--timm--{NAME}"
    commit = "0" * 40
    for folder in (home / "snapshots" / commit, home / "refs"):
        folder.mkdir(parents=True)
    (home / "refs/main").write_text(commit)
    save_file(published, home / "snapshots" / commit / "model.safetensors")
    built = build_model(f"timm:{NAME}", num_classes=1000, pretrained=True).model.net.state_dict()
    assert all(torch.equal(built[name], value) for name, value in published.items())


def test_a_hub_that_answers_is_asked(endpoint: socket.socket) -> None:
    assert not reachable()
    endpoint.listen()
    assert reachable()
    with cache_alone_if_unreachable():
        assert not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_behind_a_proxy_only_the_proxy_knows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert not reachable(), "this hub is asked without encryption"
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert reachable()


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("address", "asked"),
    [("https://hub.example", 443), ("http://hub.example", 80), ("https://hub.example:8443/path", 8443)],
)
def test_the_hub_is_asked_at_its_port(monkeypatch: pytest.MonkeyPatch, address: str, asked: int) -> None:
    called: list[tuple[str, int]] = []

    def connect(place: tuple[str, int], timeout: float) -> socket.socket:
        called.append(place)
        return socket.socket()

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert reachable()
    assert called == [("hub.example", asked)]


@pytest.mark.usefixtures("endpoint")
def test_other_mistakes_keep_their_own_words() -> None:
    with pytest.raises(AssertionError, match="odd"), cache_alone_if_unreachable():
        raise AssertionError("odd")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
