"""Data sets as arrays: MNIST and CIFAR-10 in their published formats, and folders of images."""

import contextlib
import gzip
import hashlib
import json
import logging
import lzma
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import httpx
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from tqdm import tqdm

from model.config import CIFAR10_CLASSES, DIGITS

log = logging.getLogger("scanline.data")


class DataError(ValueError):
    """Data that cannot be used; the message is a sentence for the user that says what to do."""


class MissingDataError(DataError):
    """None of the folders searched holds the data set."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their labels, if they have any.

    `images` is uint8 `[N, H, W, C]`, `labels` int64 `[N]` or None, `classes` the name of each
    label or `()`. `note` says what a reader of a figure measured on these images must know.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise ValueError("images must be uint8 [N, H, W, C]")
        if self.labels is not None and self.labels.shape != self.images.shape[:1]:
            raise ValueError("labels must be [N], one for each image")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: slice | Sequence[int] | npt.NDArray[np.integer]) -> "Dataset":
        """Return the images and labels at `indices`, in that order (a slice gives views)."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels)


@dataclass(frozen=True)
class Source:
    """Where a data set is published: a base URL, and the SHA-256 of each file under it."""

    base_url: str
    files: Mapping[str, str]


# SHA-256 of the published files, unpacked. The published test batch has only an MD5, the one
# checksum its authors gave; the copy below it was put together from public copies of the images,
# 23 of them approximate.
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
_MNIST_GZ_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_ARCHIVE = "cifar-10-binary.tar.gz"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"

SOURCES: Mapping[str, Source] = {
    "mnist": Source(  # a mirror: the authors' own server refuses downloads
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {f"{file}.gz": digest for file, digest in _MNIST_GZ_SHA256.items()},
    ),
    "cifar10": Source("https://www.cs.toronto.edu/~kriz/", {_ARCHIVE: _ARCHIVE_SHA256}),
}
_FILES = {
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
_RENEW = "Delete it, then copy or download it again"
# Named, so that no file can reach Pillow's less guarded readers (EPS starts Ghostscript).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"}


def load_dataset(
    name: str, split: str, data_dir: Path | None = None, *, download: bool = False
) -> Dataset:
    """Read the `"train"` or `"test"` images of `"mnist"` (28×28×1) or `"cifar10"` (32×32×3).

    Looks in `data_dir`, else in `SCANLINE_DATA_DIR`, else in `data/` of the checkout,
    `shared/data/` beside it and `~/.cache/scanline/data`. Files may be plain, gzip or xz.
    With `download`, a data set found nowhere is fetched first. Raises MissingDataError, or
    DataError for a damaged file. Source: IDX and CIFAR-10 binary formats as published.
    """
    wanted = _FILES.get((name, split))
    if wanted is None:
        known = " and ".join(SOURCES)
        raise DataError(f"no data set {name!r} {split!r}: choose {known}, with train or test")
    try:
        paths = _find(name, split, _roots(data_dir))
    except MissingDataError:
        if not download:
            raise
        _fetch(SOURCES[name], _download_folder(name, data_dir))
        paths = _find(name, split, _roots(data_dir))
    read = _read_mnist if name == "mnist" else _read_cifar
    return read(paths[0].parent, _contents(wanted, paths))


def download(name: str, data_dir: Path | None = None, *, source: Source | None = None) -> Path:
    """Fetch the published files of `"mnist"` or `"cifar10"` and return the folder they are in.

    Files that are there and whole are kept. The root is `data_dir`, else `SCANLINE_DATA_DIR`,
    else `~/.cache/scanline/data`; `source` names another mirror. Every file is checked before
    it takes its place. Raises DataError without a network, on HTTP errors and on a mismatch.
    """
    if name not in SOURCES:
        raise DataError(f"no data set {name!r} to download: choose {' or '.join(SOURCES)}")
    return _fetch(source or SOURCES[name], _download_folder(name, data_dir))


def split_validation(
    dataset: Dataset, fraction_or_count: float | int, seed: int
) -> tuple[Dataset, Dataset]:
    """Split into (training, validation), the same way for the same seed on every machine.

    A float in (0, 1) is the fraction held out, an int the number of images; both parts keep
    the original order. Raises DataError when either part would be empty.
    """
    N = len(dataset)
    if isinstance(fraction_or_count, int):
        held = fraction_or_count
    else:
        held = max(1, round(N * fraction_or_count)) if 0 < fraction_or_count < 1 else 0
    if not 0 < held < N:
        raise DataError(
            f"cannot hold out {fraction_or_count} of {N:,} images: give a fraction between 0 "
            "and 1, or a whole number smaller than theirs"
        )
    # NumPy promises that a bit generator's stream never changes, but not Generator.permutation.
    order = np.argsort(np.random.Philox(key=seed).random_raw(N), kind="stable")
    note = f"validation: {held:,} of {N:,} images held out, seed {seed}"
    whole = replace(dataset, note="; ".join(filter(None, (dataset.note, note))))
    return whole.take(np.sort(order[held:])), whole.take(np.sort(order[:held]))


def load_images(folder: Path, size: int | tuple[int, int], grey: bool) -> Dataset:
    """Read every image under `folder`, cut to `size` (a side, or height and width), sorted by path.

    Images are turned upright by their EXIF tag, laid on white where transparent, cropped about
    the centre to the shape of `size` and resized (Lanczos); of an animation, the first frame.
    `images` is `[N, H, W, 1]` if `grey`, else `[N, H, W, 3]`. Sub-folders with images are the
    classes, in the order of their names. Unreadable files are left out and named in a warning.
    Raises DataError when nothing can be read, or images lie both in and beside class folders.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise DataError(f"images cannot be {height}×{width} pixels: give a size of 1 or more")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give one that holds images")
    try:  # compared part by part, so that a class's images stay together whatever its name
        files = sorted(path.relative_to(folder).parts for path in _walk(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error}): check its permissions") from error
    loose = sum(len(parts) == 1 for parts in files)
    if 0 < loose < len(files):
        raise DataError(
            f"{folder} holds {loose:,} images beside its sub-folders, which are the classes: move "
            "them into one, or all images into one folder to have no classes"
        )
    images = np.empty((len(files), height, width, 1 if grey else 3), np.uint8)
    read: list[tuple[str, ...]] = []
    broken: list[str] = []
    for parts in tqdm(files, desc="reading images", unit="", disable=None, delay=1):
        try:
            images[len(read)] = _read_image(folder.joinpath(*parts), height, width, grey)
        except Exception as error:  # on a broken file Pillow's readers raise almost anything
            broken.append(f"{'/'.join(parts)} ({error})")
        else:
            read.append(parts)
    if not read:
        tried = f": {broken[0]}" if broken else ""
        raise DataError(
            f"{folder} holds no image that can be read{tried}. Give a folder of "
            f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} files"
        )
    note = ""
    if broken:
        note = f"{len(broken):,} unreadable files left out"
        log.warning("%s: %s: %s", folder, note, "; ".join(broken[:5]))
    classes = () if loose else tuple(sorted({parts[0] for parts in read}))
    labels = np.array([classes.index(parts[0]) for parts in read], np.int64) if classes else None
    return Dataset("images", images[: len(read)], labels, classes, note)


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Every image file below `folder`, but for what systems and editors hide there."""
    above = (*above, folder.resolve())
    for path in folder.iterdir():
        if path.name.startswith((".", "__MACOSX")):
            continue
        if path.is_dir():
            if path.resolve() not in above:  # a link back up would never end
                yield from _walk(path, above)
        elif path.suffix.lower() in _SUFFIXES:
            yield path


def _read_image(path: Path, height: int, width: int, grey: bool) -> npt.NDArray[np.uint8]:
    """One image file as uint8 `[H, W, C]`."""
    with Image.open(path, formats=_FORMATS) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I;16"):  # Pillow would clip these at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError("its 32-bit values have no known range: save it with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if grey else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(image).reshape(height, width, -1)


def _roots(data_dir: Path | None) -> list[Path]:
    """The folders to search: the one asked for alone, else the usual ones."""
    if data_dir is None and (named := os.environ.get("SCANLINE_DATA_DIR")):
        data_dir = Path(named)
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    checkout = Path(__file__).resolve().parent.parent
    cache = Path.home() / ".cache" / "scanline" / "data"
    return [checkout / "data", checkout.parent / "shared" / "data", cache]


def _download_folder(name: str, data_dir: Path | None) -> Path:
    return _roots(data_dir)[-1] / _FOLDERS[name][0]


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


def _find(name: str, split: str, roots: Sequence[Path]) -> list[Path]:
    """The files of a split, in order, from the first folder with all of them or the archive."""
    wanted, incomplete = _FILES[name, split], ""
    for folder in (root / sub for root in roots for sub in _FOLDERS[name]):
        found = {file: path for file in wanted if (path := _present(folder, file))}
        if len(found) == len(wanted):
            return list(found.values())
        if name == "cifar10" and (archive := _present(folder, _ARCHIVE)):
            return [archive]
        if found and not incomplete:
            missing = [file for file in wanted if file not in found]
            incomplete = f" ({folder} has some of them, but not {', '.join(missing)})"
    raise MissingDataError(
        f"no {name} {split} files in {' or '.join(map(str, roots))}{incomplete}: name their folder "
        "with --data-dir or SCANLINE_DATA_DIR, or have them downloaded"
    )


def _contents(wanted: Sequence[str], paths: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Each wanted file in order, unpacked: its name, where it is (for messages), its bytes."""
    if paths[0].name != _ARCHIVE:
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
        raise DataError(f"{paths[0]} cannot be read ({error}). {_RENEW}") from error
    for file in wanted:
        if file not in members:
            raise DataError(f"{paths[0]} is not the published archive: it lacks {file}. {_RENEW}")
        yield file, f"{file} in {paths[0]}", members.pop(file)


def _unpack(path: Path) -> bytes:
    """A file's bytes, unpacked by what it is, not by what it is called."""
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
        raise DataError(f"{path} is damaged ({error}). {_RENEW}") from error
    return content


def _is_published(file: str, where: str, content: bytes, count: int) -> bool:
    """Whether this is the published file; raises DataError for a damaged copy of it."""
    if count == 0:
        raise DataError(f"{where} holds no records. {_RENEW}")
    published = 60_000 if file.startswith("train-") else 10_000
    if count != published:
        log.info("%s: %d records, not the published %d: not checked", where, count, published)
        return False
    if hashlib.sha256(content).hexdigest() != _SHA256[file]:
        raise DataError(
            f"{where} is damaged: it has as many records as the published file but another "
            f"checksum. {_RENEW}"
        )
    return True


def _as_labels(where: str, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    if values.max() > 9:
        raise DataError(f"{where} has a label {values.max()}, but labels are 0 to 9. {_RENEW}")
    return values.astype(np.int64)


def _note(count: int, published: bool) -> str:
    return "" if published else f"{count:,} images that are not the published set"


def _read_mnist(_: Path, contents: Iterator[tuple[str, str, bytes]]) -> Dataset:
    """The images and labels of a split, from its two IDX files."""
    arrays = []
    published = True
    for (file, where, content), item in zip(contents, ((28, 28), ()), strict=True):
        array = _read_idx(where, content, item)
        published &= _is_published(file, where, content, len(array))
        arrays.append(array)
    images, values = arrays
    if len(images) != len(values):
        raise DataError(
            f"{where} has {len(values):,} labels for {len(images):,} images: the two files are "
            "not of one set. Replace both"
        )
    note = _note(len(images), published)
    return Dataset("mnist", images[..., None].copy(), _as_labels(where, values), DIGITS, note)


def _read_idx(where: str, content: bytes, item: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """An IDX file of uint8 as `[N, *item]`, a view of `content`."""
    magic = 0x0801 + len(item)  # unsigned bytes, and the number of dimensions
    start = 8 + 4 * len(item)
    if (found := int.from_bytes(content[:4])) != magic:
        raise DataError(f"{where} starts with {found}, an IDX file like it with {magic}. {_RENEW}")
    if len(content) < start:
        raise DataError(f"{where} is cut short: it ends within its header. {_RENEW}")
    count, *sizes = struct.unpack_from(f">{start // 4 - 1}I", content, 4)
    if tuple(sizes) != item:
        raise DataError(
            f"{where} has images of {'×'.join(map(str, sizes))} pixels, MNIST of 28×28: read "
            "images of another size from a folder"
        )
    if len(content) != (size := start + count * math.prod(item)):
        raise DataError(
            f"{where} has {len(content):,} bytes, not the {size:,} its header promises. {_RENEW}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *item)


def _read_cifar(folder: Path, contents: Iterator[tuple[str, str, bytes]]) -> Dataset:
    """The batches of a split, joined, without the test records known to be approximate."""
    images, labels = [], []
    published, note = True, ""
    for file, where, content in contents:
        if len(content) % 3073:
            raise DataError(
                f"{where} has {len(content):,} bytes, not a whole number of CIFAR-10 records of "
                f"3,073. {_RENEW}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        # The published test batch has no approximate records, whatever list lies beside it.
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
    """The test records listed as approximate in `folder`, none if there is no list."""
    path = folder / "test_batch.inexact.json"
    if not path.is_file():
        if needed:
            raise DataError(
                f"the test batch in {folder} is the copy with approximate records: put the list "
                f"of them, {path.name}, beside it"
            )
        return []
    try:
        records = json.loads(path.read_bytes())["inexact_records"]
        listed = sorted({range(count)[record] for record in records if record >= 0})
        if len(listed) == len(records) < count:
            return listed
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}). {_RENEW}") from error
    raise DataError(f"{path} does not list records of this test batch. {_RENEW}")


def _fetch(source: Source, folder: Path) -> Path:
    """Download what `folder` lacks of `source`, each file under another name until it is whole."""
    for file, digest in source.files.items():
        url, target = f"{source.base_url.rstrip('/')}/{file}", folder / file
        part = folder / f".{file}.{os.getpid()}.part"
        by_hand = f"or put {file} into {folder} by hand"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if target.is_file():
                with target.open("rb") as present:
                    if hashlib.file_digest(present, "sha256").hexdigest() == digest:
                        continue
            if _stream(url, part) != digest:
                raise DataError(
                    f"{url} gave another file than the published one: try again, {by_hand}"
                )
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
    return folder


def _stream(url: str, path: Path) -> str:
    """Save what `url` sends to `path` and return its SHA-256."""
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
