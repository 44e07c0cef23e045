"""Shards behind URLs are read as those on disk, each byte about once, within the room that the cache may take."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.cli import main
from holdfast.data import load, shard, shard_files
from holdfast.data.loaders import StreamLoader
from holdfast.data.shard_files import LocalShards, RemoteShards, sweep
from holdfast.data.shard_index import INDEX
from holdfast.data.splits import FileSplit, hash_data
from holdfast.errors import HoldfastError
from tests.conftest import same_weights
from tests.data.pictures import noise, write

fsspec = pytest.importorskip("fsspec")
PLAIN: dict[str, Any] = {"epochs": 1, "batch_size": 8, "device": "cpu", "lr": 0.01, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("urls")
    for i in range(40):
        write(home / f"data/{'train' if i < 30 else 'test'}/{'ab'[i % 2]}/{i}.png", noise(8, 8, seed=i))
    shard(home / "data", home / "shards", megabytes=0.02)
    return home / "shards"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def memory(shards: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for path in shards.iterdir():
        system.pipe_file(f"/set/{path.name}", path.read_bytes())
    yield "memory://set"
    system.rm("/set", recursive=True)


class Ranges(SimpleHTTPRequestHandler):
    """A server as storage services are: it answers for parts of a file."""

    ranges = True

    def do_GET(self) -> None:
        path, asked = Path(self.translate_path(self.path)), self.headers.get("Range")
        if not (self.ranges and asked and path.is_file()):
            return super().do_GET()
        content = path.read_bytes()
        first, last = asked.removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None

    def log_message(self, *args: object) -> None:
        return None


class WholeFiles(Ranges):
    ranges = False


@pytest.fixture
def served(shards: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    handler = getattr(request, "param", Ranges)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(shards))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def whole(source: Any) -> torch.Tensor:
    split = load(source).train
    return split.read(torch.arange(len(split)))


def test_a_file_url_is_the_folder_itself(shards: Path) -> None:
    split = load(f"file://{shards}").train
    assert isinstance(split, FileSplit)
    assert isinstance(split.paths.table.source, LocalShards)  # type: ignore[union-attr]
    assert torch.equal(whole(f"file://{shards}"), whole(shards))


def test_training_over_urls_is_bit_equal_to_that_on_disk(shards: Path, memory: str, served: str) -> None:
    on_disk = holdfast.fit(shards, workers=0, **PLAIN)
    for url in (memory, served):
        assert same_weights(holdfast.fit(url, workers=0, **PLAIN).model, on_disk.model)
    first, second = (hash_data(data, data.splits.values()) for data in (load(shards), load(served)))
    assert first == second


def test_worker_processes_read_urls_too(shards: Path, served: str) -> None:
    split = load(served).train
    split.read(torch.arange(2))  # the file system of this process is in use before it is forked
    for path in Path(str(split.paths.table.source.folder)).iterdir():  # type: ignore[attr-defined]
        path.unlink()
    loader = StreamLoader(split, batch_size=8, device=torch.device("cpu"), workers=2)
    images = torch.cat([batch.x for batch in loader.batches(torch.arange(len(split)))])
    assert torch.equal(images, whole(shards))


def test_each_chunk_is_fetched_once_and_again_when_it_is_gone(
    memory: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "CHUNK", 1000)  # images cross the borders of chunks
    asked: list[tuple[str, int]] = []
    fetch = RemoteShards._fetch

    def counted(self: RemoteShards, chunks: Any) -> Any:
        asked.extend(chunks)
        return fetch(self, chunks)

    monkeypatch.setattr(RemoteShards, "_fetch", counted)
    first = whole(memory)
    assert len(asked) == len(set(asked)) > 10
    before = len(asked)
    assert torch.equal(whole(memory), first)
    assert len(asked) == before, "the second pass reads the cache"
    next(cache.iterdir()).unlink()
    assert torch.equal(whole(memory), first)
    assert len(asked) == before + 1


def test_the_cache_stays_within_its_limit_and_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    for i in range(10):
        path = tmp_path / str(i)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + (i if i else 50), 1000 + (i if i else 50)))  # the first was used last
    sweep(tmp_path, 350)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "8", "9"]


def test_shards_that_changed_behind_the_url_are_refused(memory: str) -> None:
    system = fsspec.filesystem("memory")
    content = bytearray(system.cat_file("/set/train-000000.tar"))
    content[600] ^= 1
    system.pipe_file("/set/train-000000.tar", bytes(content))
    with pytest.raises(HoldfastError, match="in memory://set/train-000000.tar have changed since they were indexed"):
        whole(memory)
    system.pipe_file("/set/train-000000.tar", bytes(content[:-512]))
    with pytest.raises(HoldfastError, match="'train-000000.tar' of memory://set has changed"):
        load(memory)
    system.rm("/set/train-000000.tar")
    with pytest.raises(HoldfastError, match="a shard of memory://set is missing"):
        load(memory)


def test_shards_without_an_index_are_indexed_where_they_are(memory: str, served: str, shards: Path) -> None:
    system = fsspec.filesystem("memory")
    system.rm(f"/set/{INDEX}")
    assert torch.equal(whole(memory), whole(shards))
    assert system.cat_file(f"/set/{INDEX}") == (shards / INDEX).read_bytes()
    (shards / INDEX).rename(shards / "aside")
    try:
        data = load(served)
    finally:
        (shards / "aside").rename(shards / INDEX)
    assert [note.code for note in data.notes][:1] == ["index-not-kept"]
    assert len(data.train) == 30


def test_one_tar_behind_a_url(memory: str, shards: Path) -> None:
    data = load(f"{memory}/train-000000.tar", training=False, least_classes=1)
    here = load(shards / "train-000000.tar", training=False, least_classes=1)
    assert torch.equal(data.train.read(torch.arange(3)), here.train.read(torch.arange(3)))
    assert data.train.describe(0).startswith("memory://set/train-000000.tar/train/")


@pytest.mark.parametrize("served", [WholeFiles], indirect=True)
def test_a_server_that_sends_whole_files_is_refused(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "CHUNK", 1000)
    with pytest.raises(HoldfastError, match="does not answer requests for parts of a file"):
        whole(served)


BAD_URLS = {
    "foo://set": "cannot open foo://set: Protocol not known: foo",
    "memory://nowhere": "lists no .tar files|cannot read memory://nowhere",
    "http://127.0.0.1:1/set": "cannot read http://127.0.0.1:1/set",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_leads_nowhere_ends_with_code_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", url, "--epochs", "1", "--device", "cpu"]) == 2
    with pytest.raises(HoldfastError, match=BAD_URLS[url]):
        raise HoldfastError(capsys.readouterr().err)


def test_without_fsspec_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(HoldfastError, match=r"memory://set needs fsspec; run: pip install 'holdfast\[fsspec\]'"):
        load("memory://set")


@pytest.mark.parametrize("said", ["many", "0", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(said: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_GB", said)
    with pytest.raises(HoldfastError, match="HOLDFAST_CACHE_GB must be a number of gigabytes above 0"):
        load(memory)


def test_open_shards_are_few_however_many_there_are(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "OPEN_SHARDS", 1)
    split = load(shards).train
    assert len(split.paths.table.shards) > 2  # type: ignore[attr-defined]
    split.read(torch.arange(len(split)))
    assert len(split.paths.table.source._open) == 1  # type: ignore[attr-defined]


def test_a_shard_stays_open_for_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    source, read = LocalShards(str(tmp_path)), os.pread

    def late(file: int, size: int, offset: int) -> bytes:
        source._open.clear()  # as another thread does that opens the same shard, or one too many
        return read(file, size, offset)

    monkeypatch.setattr(os, "pread", late)
    assert source.read("a.tar", 2, 3) == b"234"
