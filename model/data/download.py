"""The files of MNIST and CIFAR-10: where they are published and where they lie on this machine."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from scanline.kernels.cache import cache_folder

log = logging.getLogger("scanline.data")


class DataError(ValueError):
    """Data that cannot be used; the message is a sentence for the user that says what to do."""


class MissingDataError(DataError):
    """None of the folders searched holds the data set."""


@dataclass(frozen=True)
class Source:
    """Where a data set is published: a base URL, and the SHA-256 of each file under it."""

    base_url: str
    files: Mapping[str, str]


_MNIST_GZ_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
ARCHIVE = "cifar-10-binary.tar.gz"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"

SOURCES: Mapping[str, Source] = {
    "mnist": Source(  # a mirror: the authors' own server refuses downloads
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {f"{file}.gz": digest for file, digest in _MNIST_GZ_SHA256.items()},
    ),
    "cifar10": Source("https://www.cs.toronto.edu/~kriz/", {ARCHIVE: _ARCHIVE_SHA256}),
}
FILES = {
    ("mnist", "train"): ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("mnist", "test"): ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    ("cifar10", "train"): tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    ("cifar10", "test"): ("test_batch.bin",),
}
# Where a data set may lie under a root; downloads go into the first.
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", "."),
    "cifar10": ("cifar-10", "cifar10", "cifar-10-batches-bin", "."),
}


def find(name: str, split: str, data_dir: Path | None = None) -> list[Path]:
    """Return the files of a split, in order, or the archive, from the first folder with all.

    Searches `data_dir` or else the usual folders, as `load_dataset` says. Raises MissingDataError.
    """
    roots, wanted, incomplete = _roots(data_dir), FILES[name, split], ""
    for folder in (root / sub for root in roots for sub in _FOLDERS[name]):
        found = {file: path for file in wanted if (path := _present(folder, file))}
        if len(found) == len(wanted):
            return list(found.values())
        if name == "cifar10" and (archive := _present(folder, ARCHIVE)):
            return [archive]
        if found and not incomplete:
            missing = [file for file in wanted if file not in found]
            incomplete = f" ({folder} has some of them, but not {', '.join(missing)})"
    raise MissingDataError(
        f"no {name} {split} files in {' or '.join(map(str, roots))}{incomplete}: name their folder "
        "with --data-dir or SCANLINE_DATA_DIR, or have them downloaded with --download"
    )


def download(name: str, data_dir: Path | None = None, *, source: Source | None = None) -> Path:
    """Fetch the published files of `"mnist"` or `"cifar10"` and return the folder they are in.

    Files that are there and whole are kept. The root is `data_dir`, else `SCANLINE_DATA_DIR`,
    else `data/` in the cache (`cache_folder`); `source` names another mirror. Every file is
    checked before it takes its place. Raises DataError without a network, on HTTP errors and on
    a mismatch.
    """
    if name not in SOURCES:
        raise DataError(f"no data set {name!r} to download: choose {' or '.join(SOURCES)}")
    source = source or SOURCES[name]
    folder = _roots(data_dir)[-1] / _FOLDERS[name][0]
    for file, digest in source.files.items():
        _fetch(f"{source.base_url.rstrip('/')}/{file}", folder / file, digest)
    return folder


def _roots(data_dir: Path | None) -> list[Path]:
    """The folders to search: the one asked for alone, else the usual ones."""
    if data_dir is None and (named := os.environ.get("SCANLINE_DATA_DIR")):
        data_dir = Path(named)
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    checkout = Path(__file__).resolve().parents[2]
    return [checkout / "data", checkout.parent / "shared" / "data", cache_folder() / "data"]


def _present(folder: Path, file: str) -> Path | None:
    """The path of `file` in `folder`, packed or not, under either spelling in circulation."""
    for spelling in (file, file.replace("-idx", ".idx")):
        for suffix in ("", ".gz", ".xz"):
            path = folder / (spelling + suffix)
            try:
                if path.is_file():
                    return path
            except OSError:  # a folder that may not be entered, such as another user's cache
                return None
    return None


def _fetch(url: str, target: Path, digest: str) -> None:
    """Download a file that is not there or damaged, under another name until it is whole."""
    import httpx  # which what is there already does without

    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    by_hand = f"or put {target.name} into {target.parent} by hand"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            with target.open("rb") as present:
                if hashlib.file_digest(present, "sha256").hexdigest() == digest:
                    return
        if _stream(url, part) != digest:
            raise DataError(f"{url} gave another file than the published one: try again, {by_hand}")
        part.replace(target)
        log.info("downloaded %s", target)
    except httpx.HTTPStatusError as error:
        status = f"{error.response.status_code} {error.response.reason_phrase}"
        raise DataError(f"{url} answered {status}: try again later, {by_hand}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(
            f"{url} cannot be fetched ({error}): check the network, {by_hand}"
        ) from error
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error}): name another folder with --data-dir or "
            "SCANLINE_DATA_DIR"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _stream(url: str, path: Path) -> str:
    """Save what `url` sends to `path` and return its SHA-256."""
    import httpx

    digest = hashlib.sha256()
    headers = {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(30, connect=10)
    with (
        httpx.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as reply,
        path.open("wb") as file,
    ):
        size = int(reply.raise_for_status().headers.get("Content-Length", 0)) or None
        with tqdm(total=size, desc=url, unit="B", unit_scale=True, disable=None) as bar:
            # Raw: some servers declare a .gz file as an encoding, and it must stay packed.
            for chunk in reply.iter_raw():
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
    return digest.hexdigest()
