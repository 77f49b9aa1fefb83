"""Readers of published data sets in their binary formats."""

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scanline.model.data.catalog import PUBLISHED, PublishedFile, PublishedSet, one_of
from scanline.model.data.dataset import Dataset
from scanline.model.data.download import DataError, MissingDataError, find
from scanline.model.data.download import download as fetch

log = logging.getLogger("scanline.data")

_FIX = "Delete it, then copy or download it again"


def load_dataset(
    name: str, split: str, data_dir: Path | None = None, *, download: bool = False
) -> Dataset:
    """Read a split of a published data set.

    Args:
        name: Key of ``PUBLISHED``.
        split: ``"train"`` or ``"test"``.
        data_dir: Folder of the files, which may be compressed by gzip or xz. None means
            ``SCANLINE_DATA_DIR``; if that is unset, the first that holds the files of ``data/`` in
            the checkout, ``shared/data/`` beside it, and ``data/`` in the cache (``cache_folder``).
        download: Download the files if they are not found.

    Raises:
        MissingDataError: If the files are not found.
        DataError: If the name is unknown, or a file is damaged.
        ValueError: If the split is unknown.
    """
    published = PUBLISHED.get(name)
    if published is None:
        raise DataError(f"unknown data set {name!r}: choose {one_of(PUBLISHED)}")
    if split not in published.splits:
        raise ValueError(f"split must be {one_of(published.splits)}, not {split!r}")
    try:
        paths = find(published, split, data_dir)
    except MissingDataError:
        if not download:
            raise
        fetch(published, data_dir)
        paths = find(published, split, data_dir)
    contents = _contents(published, split, paths)
    if published.layout == "idx":
        return _read_idx_pair(published, contents)
    return _read_cifar(published, contents)


class _Content(NamedTuple):
    """A decompressed file, its location for messages, and the folder that it was found in."""

    file: PublishedFile
    where: str
    folder: Path
    content: bytes


def _contents(published: PublishedSet, split: str, paths: Sequence[Path]) -> Iterator[_Content]:
    """Read each file of a split."""
    files = published.splits[split]
    if paths[0].name != published.archive:
        for file, path in zip(files, paths, strict=True):
            yield _Content(file, str(path), path.parent, _unpack(path))
        return
    wanted = {file.name for file in files}
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(paths[0]) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in wanted and (stream := archive.extractfile(member)):
                    members[name] = stream.read()
                    if len(members) == len(wanted):
                        break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{paths[0]} cannot be read ({error}). {_FIX}") from error
    for file in files:
        if file.name not in members:
            raise DataError(
                f"{paths[0]} is not the published archive: it lacks {file.name}. {_FIX}"
            )
        where = f"{file.name} in {paths[0]}"
        yield _Content(file, where, paths[0].parent, members.pop(file.name))


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


def _is_published(published: PublishedSet, read: _Content, count: int) -> bool:
    """Return True if this is the published file; raise ``DataError`` if only its size is the same.

    Args:
        published: The data set.
        read: The file.
        count: Number of its records.
    """
    file, where = read.file, read.where
    if count == 0:
        raise DataError(f"{where} holds no records. {_FIX}")
    if count != file.records:
        log.info("%s: %d records, not the published %d: not checked", where, count, file.records)
        return False
    if hashlib.sha256(read.content).hexdigest() != file.sha256:
        raise DataError(
            f"{where} is not the published {published.name} file: it has as many records but "
            "another checksum. If it belongs to another data set, move it to a folder of its own; "
            "otherwise delete it and copy or download it again"
        )
    return True


def _as_labels(
    published: PublishedSet, where: str, values: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    last = len(published.classes) - 1
    if values.max() > last:
        raise DataError(f"{where} has a label {values.max()}, but labels are 0 to {last}. {_FIX}")
    return values.astype(np.int64)


def _note(count: int, unchanged: bool) -> str:
    return "" if unchanged else f"{count:,} images that are not the published set"


def _read_idx_pair(published: PublishedSet, contents: Iterator[_Content]) -> Dataset:
    """Read the images and labels of a split from its two IDX files."""
    arrays = []
    unchanged = True
    height, width, _ = published.shape
    for read, item in zip(contents, ((height, width), ()), strict=True):
        array = _read_idx(published, read, item)
        unchanged &= _is_published(published, read, len(array))
        arrays.append(array)
    images, values = arrays
    if len(images) != len(values):
        raise DataError(
            f"{read.where} has {len(values):,} labels for {len(images):,} images: the two files do "
            "not belong together. Replace both"
        )
    labels = _as_labels(published, read.where, values)
    note = _note(len(images), unchanged)
    return Dataset(published.name, images[..., None].copy(), labels, published.classes, note)


def _read_idx(
    published: PublishedSet, read: _Content, item: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    """Parse an IDX file of uint8 as ``[N, *item]``, a view of its bytes."""
    where, content = read.where, read.content
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
            f"{where} has images of {'×'.join(map(str, sizes))} pixels, but {published.name} has "
            f"{'×'.join(map(str, item))}: use a folder for images of another size"
        )
    if len(content) != (size := start + count * math.prod(item)):
        raise DataError(
            f"{where} has {len(content):,} bytes, but its header requires {size:,}. {_FIX}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *item)


def _read_cifar(published: PublishedSet, contents: Iterator[_Content]) -> Dataset:
    """Read the records of a split, without those that are known to be approximate."""
    images, labels = [], []
    unchanged, note = True, ""
    height, width, channels = published.shape
    size = 1 + math.prod(published.shape)
    for read in contents:
        file, content = read.file, read.content
        if len(content) % size:
            raise DataError(
                f"{read.where} has {len(content):,} bytes, which is not a multiple of a "
                f"{published.name} record's {size:,}. {_FIX}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        if not file.original_md5:
            unchanged &= _is_published(published, read, len(records))
        # The authors' file has no approximate records, so a list is ignored.
        elif hashlib.md5(content, usedforsecurity=False).hexdigest() != file.original_md5:
            whole = _is_published(published, read, len(records))
            unchanged &= whole
            left_out = _inexact_records(read, len(records), needed=whole)
            records = np.delete(records, left_out, axis=0)
            if left_out:
                note = (
                    f"{len(records):,} exact test images; {len(left_out):,} approximate ones left "
                    "out"
                )
        labels.append(_as_labels(published, read.where, records[:, 0]))
        planes = records[:, 1:].reshape(-1, channels, height, width)
        images.append(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))
    joined = np.concatenate(images)
    note = "; ".join(filter(None, (_note(len(joined), unchanged), note)))
    return Dataset(published.name, joined, np.concatenate(labels), published.classes, note)


def _inexact_records(read: _Content, count: int, *, needed: bool) -> list[int]:
    """Return the records that the list beside a file names, or [] if there is no list."""
    path = read.folder / f"{Path(read.file.name).stem}.inexact.json"
    if not path.is_file():
        if needed:
            raise DataError(
                f"{read.where} is the copy with approximate records: copy their list, {path.name}, "
                f"into {read.folder}"
            )
        return []
    try:
        records = json.loads(path.read_bytes())["inexact_records"]
        listed = sorted({range(count)[record] for record in records if record >= 0})
        if len(listed) == len(records) < count:
            return listed
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}). {_FIX}") from error
    raise DataError(f"{path} does not list records of this file. {_FIX}")
