"""Folders of images as arrays."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from scanline.model.data.dataset import Dataset
from scanline.model.data.download import DataError
from scanline.model.images import FORMATS, fit_image, flatten_alpha, open_image

log = logging.getLogger("scanline.data")

_SUFFIXES = {
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm",
}  # fmt: skip


def load_image_folder(folder: Path, size: int | tuple[int, int], grey: bool) -> Dataset:
    """Read every image under `folder`, cut to `size` (a side, or height and width), sorted by path.

    Images are turned upright by their EXIF tag, cropped about the centre to the shape of `size`,
    resized (Lanczos) and laid on black where transparent; of an animation, the first frame.
    `images` is `[N, H, W, 1]` if `grey`, else `[N, H, W, 3]`. Sub-folders with images are the
    classes, in the order of their names. Unreadable files are left out and named in a warning, and
    so are those not tried, by their suffixes.
    Raises DataError when nothing can be read, or images lie both in and beside class folders.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise DataError(f"images cannot be {height}×{width} pixels: give a size of 1 or more")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give one that holds images")
    try:  # compared part by part, so that a class's images stay together whatever its name
        found = sorted(path.relative_to(folder).parts for path in _walk(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error}): check its permissions") from error
    files = [parts for parts in found if _suffix(parts) in _SUFFIXES]
    if others := sorted({_suffix(parts) for parts in found} - _SUFFIXES):
        kinds = ", ".join(suffix or "no suffix" for suffix in others[:5])
        log.warning(
            "%s: %s other files are not read (%s): save what is a picture as one of %s",
            folder, f"{len(found) - len(files):,}", kinds, ", ".join(FORMATS),
        )  # fmt: skip
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
            f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]} files"
        )
    note = ""
    if broken:
        note = f"{len(broken):,} unreadable files left out"
        more = f"; and {len(broken) - 5:,} more" if len(broken) > 5 else ""
        log.warning("%s: %s: %s%s", folder, note, "; ".join(broken[:5]), more)
    classes = () if loose else tuple(sorted({parts[0] for parts in read}))
    labels = np.array([classes.index(parts[0]) for parts in read], np.int64) if classes else None
    pictures = images[: len(read)]
    return Dataset("images", pictures, labels, classes, note, folder=folder.resolve().name)


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Every file below `folder`, but for what systems and editors hide there."""
    above = (*above, folder.resolve())
    for path in folder.iterdir():
        if path.name.startswith((".", "__MACOSX")):
            continue
        if path.is_dir():
            if path.resolve() not in above:  # a link back up would never end
                yield from _walk(path, above)
        elif path.is_file() or not path.exists():  # no FIFO, which would be waited for
            yield path


def _suffix(parts: tuple[str, ...]) -> str:
    return Path(parts[-1]).suffix.lower()


def _read_image(path: Path, height: int, width: int, grey: bool) -> npt.NDArray[np.uint8]:
    """One image file as uint8 `[H, W, C]`."""
    with path.open("rb") as file:
        picture = open_image(file)
    return flatten_alpha(fit_image(picture, height, width, 1 if grey else 3, "cover"))
