"""Readers of MNIST and CIFAR-10 in their published binary formats."""

import gzip
import hashlib
import json
import logging
import lzma
import math
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from scanline.model.config import CIFAR10_CLASSES, DIGITS
from scanline.model.data.dataset import Dataset
from scanline.model.data.download import (
    ARCHIVE,
    FILES,
    SOURCES,
    DataError,
    MissingDataError,
    find,
)
from scanline.model.data.download import download as fetch

log = logging.getLogger("scanline.data")

# SHA-256 of the uncompressed published files. For `test_batch.bin` it is that of a reconstruction
# from public copies of the images, of which 23 are approximate; for the published file its authors
# give only an MD5.
_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "12b72019dddc66aa680d9654ddcc864aa808e6540641e0887054d04d415d6427",
}
_TEST_BATCH_MD5 = "803d5f7f4d78ea53de84dbe85f74fb6d"
_FIX = "Delete it, then copy or download it again"


def load_dataset(
    name: str, split: str, data_dir: Path | None = None, *, download: bool = False
) -> Dataset:
    """Read a split of MNIST (28×28×1) or CIFAR-10 (32×32×3) in its published binary format.

    Args:
        name: ``"mnist"`` or ``"cifar10"``.
        split: ``"train"`` or ``"test"``.
        data_dir: Folder of the files, which may be compressed by gzip or xz. None means
            ``SCANLINE_DATA_DIR``; if that is unset, the first that holds the files of ``data/`` in
            the checkout, ``shared/data/`` beside it, and ``data/`` in the cache (``cache_folder``).
        download: Download the files if they are not found.

    Raises:
        MissingDataError: If the files are not found.
        DataError: If the name is unknown, or a file is damaged.
    """
    wanted = FILES.get((name, split))
    if wanted is None:
        known = " and ".join(SOURCES)
        raise DataError(f"unknown data set {name!r} {split!r}: choose {known}, with train or test")
    try:
        paths = find(name, split, data_dir)
    except MissingDataError:
        if not download:
            raise
        fetch(name, data_dir)
        paths = find(name, split, data_dir)
    contents = _contents(wanted, paths)
    return _read_mnist(contents) if name == "mnist" else _read_cifar(paths[0].parent, contents)


def _contents(wanted: Sequence[str], paths: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Yield each wanted file, decompressed: its name, its location for messages, and its bytes."""
    if paths[0].name != ARCHIVE:
        for file, path in zip(wanted, paths, strict=True):
            yield file, str(path), _unpack(path)
        return
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(paths[0]) as archive:
            for member in archive:
                file = PurePosixPath(member.name).name
                if file in wanted and (stream := archive.extractfile(member)):
                    members[file] = stream.read()
                    if len(members) == len(wanted):
                        break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{paths[0]} cannot be read ({error}). {_FIX}") from error
    for file in wanted:
        if file not in members:
            raise DataError(f"{paths[0]} is not the published archive: it lacks {file}. {_FIX}")
        yield file, f"{file} in {paths[0]}", members.pop(file)


def _unpack(path: Path) -> bytes:
    """Return the bytes of a file, decompressed according to its content, not its name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): check its permissions") from error
    try:
        if content.startswith(b"\x1f\x8b"):
            return gzip.decompress(content)
        if content.startswith(b"\xfd7zXZ\x00"):
            return lzma.decompress(content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged ({error}). {_FIX}") from error
    return content


def _is_published(file: str, where: str, content: bytes, count: int) -> bool:
    """Return True if this is the published file; raise ``DataError`` for a damaged copy of it."""
    if count == 0:
        raise DataError(f"{where} holds no records. {_FIX}")
    published = 60_000 if file.startswith("train-") else 10_000
    if count != published:
        log.info("%s: %d records, not the published %d: not checked", where, count, published)
        return False
    if hashlib.sha256(content).hexdigest() != _SHA256[file]:
        raise DataError(
            f"{where} is damaged: it has as many records as the published file but another "
            f"checksum. {_FIX}"
        )
    return True


def _as_labels(where: str, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    if values.max() > 9:
        raise DataError(f"{where} has a label {values.max()}, but labels are 0 to 9. {_FIX}")
    return values.astype(np.int64)


def _note(count: int, published: bool) -> str:
    return "" if published else f"{count:,} images that are not the published set"


def _read_mnist(contents: Iterator[tuple[str, str, bytes]]) -> Dataset:
    """Read the images and labels of a split from its two IDX files."""
    arrays = []
    published = True
    for (file, where, content), item in zip(contents, ((28, 28), ()), strict=True):
        array = _read_idx(where, content, item)
        published &= _is_published(file, where, content, len(array))
        arrays.append(array)
    images, values = arrays
    if len(images) != len(values):
        raise DataError(
            f"{where} has {len(values):,} labels for {len(images):,} images: the two files do not "
            "belong together. Replace both"
        )
    note = _note(len(images), published)
    return Dataset("mnist", images[..., None].copy(), _as_labels(where, values), DIGITS, note)


def _read_idx(where: str, content: bytes, item: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Parse an IDX file of uint8 as ``[N, *item]``, a view of ``content``."""
    magic = 0x0801 + len(item)  # 0x08: uint8; low byte: number of dimensions
    start = 8 + 4 * len(item)
    if (found := int.from_bytes(content[:4])) != magic:
        raise DataError(
            f"{where} starts with {found}, but this IDX file must start with {magic}. {_FIX}"
        )
    if len(content) < start:
        raise DataError(f"{where} is truncated: it ends within its header. {_FIX}")
    count, *sizes = struct.unpack_from(f">{start // 4 - 1}I", content, 4)
    if tuple(sizes) != item:
        raise DataError(
            f"{where} has images of {'×'.join(map(str, sizes))} pixels, but MNIST has 28×28: use a "
            "folder for images of another size"
        )
    if len(content) != (size := start + count * math.prod(item)):
        raise DataError(
            f"{where} has {len(content):,} bytes, but its header requires {size:,}. {_FIX}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *item)


def _read_cifar(folder: Path, contents: Iterator[tuple[str, str, bytes]]) -> Dataset:
    """Read the batches of a split, without test records that are known to be approximate."""
    images, labels = [], []
    published, note = True, ""
    for file, where, content in contents:
        if len(content) % 3073:
            raise DataError(
                f"{where} has {len(content):,} bytes, which is not a multiple of a CIFAR-10 "
                f"record's 3,073. {_FIX}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        # The published test batch has no approximate records, so a list is ignored.
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != _TEST_BATCH_MD5:
            whole = _is_published(file, where, content, len(records))
            published &= whole
            if file == "test_batch.bin":
                left_out = _inexact_records(folder, len(records), needed=whole)
                records = np.delete(records, left_out, axis=0)
                if left_out:
                    note = (
                        f"{len(records):,} exact test images; {len(left_out):,} approximate ones "
                        "left out"
                    )
        labels.append(_as_labels(where, records[:, 0]))
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        images.append(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))
    joined = np.concatenate(images)
    notes = filter(None, (_note(len(joined), published), note))
    return Dataset("cifar10", joined, np.concatenate(labels), CIFAR10_CLASSES, "; ".join(notes))


def _inexact_records(folder: Path, count: int, *, needed: bool) -> list[int]:
    """Return the test records listed as approximate in a folder, or [] if there is no list."""
    path = folder / "test_batch.inexact.json"
    if not path.is_file():
        if needed:
            raise DataError(
                f"the test batch in {folder} is the copy with approximate records: copy their "
                f"list, {path.name}, into the folder"
            )
        return []
    try:
        records = json.loads(path.read_bytes())["inexact_records"]
        listed = sorted({range(count)[record] for record in records if record >= 0})
        if len(listed) == len(records) < count:
            return listed
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}). {_FIX}") from error
    raise DataError(f"{path} does not list records of this test batch. {_FIX}")
