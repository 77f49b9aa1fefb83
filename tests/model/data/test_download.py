"""Tests of the search for data files and of downloads, from a local server."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scanline.model.data import download
from scanline.model.data.catalog import PUBLISHED, PublishedSet
from scanline.model.data.download import DataError, MissingDataError
from scanline.model.data.published_sets import load_dataset
from tests.dataset_files import (
    cifar_batch,
    idx,
    mnist_arrays,
    write_archive,
    write_cifar,
    write_mnist,
)

# Search


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "project"
    monkeypatch.setattr(download, "__file__", str(checkout / "model" / "data" / "download.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for count, root in enumerate(
        (tmp_path / "home/.cache/scanline/data", tmp_path / "shared/data", checkout / "data"), 1
    ):
        images, labels = mnist_arrays(count)
        write_mnist(root / "mnist", changes={"images": idx(images), "labels": idx(labels)})
        assert len(load_dataset("mnist", "test")) == count
    (checkout / "data").rename(checkout / "hidden")
    (tmp_path / "shared/data").rename(tmp_path / "shared/hidden")
    for count, (name, cache, under) in enumerate(
        (("XDG_CACHE_HOME", "xdg", "xdg/scanline"), ("SCANLINE_CACHE", "own", "own")), 4
    ):
        images, labels = mnist_arrays(count)
        changes = {"images": idx(images), "labels": idx(labels)}
        write_mnist(tmp_path / under / "data" / "mnist", changes=changes)
        monkeypatch.setenv(name, str(tmp_path / cache))
        assert len(load_dataset("mnist", "test")) == count
    (tmp_path / "shared/hidden").rename(tmp_path / "shared/data")
    monkeypatch.setenv("SCANLINE_DATA_DIR", str(tmp_path / "home/.cache/scanline/data"))
    assert len(load_dataset("mnist", "test")) == 1
    assert len(load_dataset("mnist", "test", tmp_path / "shared/data")) == 2
    monkeypatch.setenv("SCANLINE_DATA_DIR", "~/.cache/scanline/data")
    assert len(load_dataset("mnist", "test")) == 1
    monkeypatch.setenv(
        "SCANLINE_DATA_DIR", str(tmp_path / "empty")
    )  # set: no other folder is searched
    with pytest.raises(MissingDataError, match="empty"):
        load_dataset("mnist", "test")


def test_incomplete_folder_is_skipped_and_reported(
    tmp_path: Path,
) -> None:
    write_cifar(tmp_path / "cifar-10")
    (tmp_path / "cifar-10" / "data_batch_3.bin").unlink()
    with pytest.raises(MissingDataError, match=r"cifar-10 has some .* but not data_batch_3\.bin"):
        load_dataset("cifar10", "train", tmp_path)
    write_cifar(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_1.bin").unlink()
    with pytest.raises(
        MissingDataError, match=r"but not data_batch_3\.bin\)"
    ):  # the first incomplete folder
        load_dataset("cifar10", "train", tmp_path)
    write_cifar(tmp_path / "cifar10")
    assert len(load_dataset("cifar10", "train", tmp_path)) == 25


# Downloads


class Mirror(ThreadingHTTPServer):
    """Server of ``files`` behind a redirect; replies for names in ``broken`` are truncated."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.requested: list[str] = []

    def published(self, name: str = "mnist") -> PublishedSet:
        """Return a data set whose downloads are the files of this server."""
        digests = {file: hashlib.sha256(body).hexdigest() for file, body in self.files.items()}
        url = f"http://127.0.0.1:{self.server_port}/former/"
        return replace(PUBLISHED[name], url=url, downloads=digests)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mirror = self.server
        assert isinstance(mirror, Mirror)
        if self.path.startswith("/former/"):
            self.send_response(301)
            self.send_header("Location", self.path.removeprefix("/former"))
            self.end_headers()
            return
        name = self.path.removeprefix("/")
        mirror.requested.append(name)
        assert self.headers["Accept-Encoding"] == "identity"
        if name not in mirror.files:
            self.send_error(404)
            return
        body = mirror.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Encoding", "gzip")  # as some servers do for .gz files
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if name in mirror.broken else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def mnist_mirror(mirror: Mirror, tmp_path: Path) -> Mirror:
    write_mnist(tmp_path / "published", ".gz")
    mirror.files = {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}
    return mirror


def test_missing_data_set_is_downloaded_once(
    tmp_path: Path, mnist_mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PUBLISHED, "mnist", mnist_mirror.published())
    with pytest.raises(MissingDataError, match="add --download"):
        load_dataset("mnist", "train", tmp_path / "data")
    assert len(load_dataset("mnist", "train", tmp_path / "data", download=True)) == 6
    assert len(load_dataset("mnist", "test", tmp_path / "data", download=True)) == 6
    assert len(mnist_mirror.requested) == 4
    folder = tmp_path / "data" / "mnist"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist_mirror.files


def test_download_folder(
    tmp_path: Path, mnist_mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = mnist_mirror.published()
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".cache" / "scanline" / "data"
    assert download.download(published) == cache / "mnist"
    assert len(load_dataset("mnist", "test")) == 6
    monkeypatch.setenv("SCANLINE_DATA_DIR", str(tmp_path / "named"))
    assert download.download(published) == tmp_path / "named" / "mnist"


def test_only_missing_or_damaged_files_are_downloaded(tmp_path: Path, mnist_mirror: Mirror) -> None:
    published = mnist_mirror.published()
    folder = download.download(published, tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    mnist_mirror.requested.clear()
    download.download(published, tmp_path)
    assert set(mnist_mirror.requested) == {
        "train-labels-idx1-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    }
    assert len(load_dataset("mnist", "train", tmp_path)) == 6


def test_cifar10_archive_is_downloaded_and_read(tmp_path: Path, mirror: Mirror) -> None:
    write_archive(tmp_path / "a", {"test_batch.bin": cifar_batch()[2]})
    mirror.files = {"cifar-10-binary.tar.gz": (tmp_path / "a").read_bytes()}
    download.download(mirror.published("cifar10"), tmp_path)
    assert (tmp_path / "cifar-10" / "cifar-10-binary.tar.gz").is_file()
    assert len(load_dataset("cifar10", "test", tmp_path)) == 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mismatch", "sent another file than the published one"),
        ("404", "answered 404 Not Found: try again later, or copy .* into"),
        ("truncated", "cannot be downloaded"),
        ("nobody there", "cannot be downloaded .* check the network"),
        ("bad address", "cannot be downloaded"),
    ],
)
def test_failed_download_is_reported_and_leaves_no_file(
    tmp_path: Path, mirror: Mirror, fault: str, message: str
) -> None:
    mirror.files = {"a.gz": bytes(100_000)}
    published = mirror.published()
    if fault == "mismatch":
        mirror.files["a.gz"] = bytes(100)
    elif fault == "404":
        del mirror.files["a.gz"]
    elif fault == "truncated":
        mirror.broken.add("a.gz")
    elif fault == "nobody there":
        with Mirror() as other:  # closed again, so nothing listens on its port
            published = replace(published, url=f"http://127.0.0.1:{other.server_port}")
    else:
        published = replace(published, url="http://[::")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(b"before")
    with pytest.raises(DataError, match=message):
        download.download(published, tmp_path)
    assert [path.read_bytes() for path in (tmp_path / "mnist").iterdir()] == [b"before"]


def test_concurrent_downloads_of_a_file(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.files = {"a.gz": bytes(1000)}
    stream = download._stream

    def beside_another(url: str, path: Path) -> str:
        digest = stream(url, path)
        with monkeypatch.context() as patch:
            patch.setattr(download, "_stream", stream)
            patch.setattr("os.getpid", lambda: -1)
            download.download(mirror.published(), tmp_path)
        return digest

    monkeypatch.setattr(download, "_stream", beside_another)
    folder = download.download(mirror.published(), tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mirror.files


def test_read_only_folder_is_reported(tmp_path: Path, mirror: Mirror) -> None:
    mirror.files = {"a.gz": b"content"}
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot be written .* choose another folder"):
        download.download(mirror.published(), tmp_path)


def test_checksums_are_complete_and_differ() -> None:
    sets = PUBLISHED.values()
    digests = [file.sha256 for one in sets for files in one.splits.values() for file in files]
    digests += [digest for one in sets for digest in one.downloads.values()]
    assert {len(digest) for digest in digests} == {64}
    assert len(set(digests)) == len(digests)


def test_downloads_hold_all_files(tmp_path: Path) -> None:
    for name, published in PUBLISHED.items():
        assert {*published.splits} == {"train", "test"}
        folder = tmp_path / name / published.folders[0]
        folder.mkdir(parents=True)
        for file in published.downloads:
            (folder / file).touch()
        for split in published.splits:
            assert download.find(published, split, tmp_path / name)
