"""Data sets from folders of image files."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scanline.model.data.catalog import one_of
from scanline.model.data.dataset import Dataset
from scanline.model.data.download import DataError
from scanline.model.images import FORMATS, any_image_size, fit_image, flatten_alpha, open_image
from scanline.model.progress import show_progress

log = logging.getLogger("scanline.data")

_SUFFIXES = {
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm",
}  # fmt: skip
# Folders that systems and network storage create, in lower case. They hold deleted images, earlier
# versions and thumbnails, as do hidden folders such as .Trash-1000 and .AppleDouble.
_SYSTEM_FOLDERS = {
    "__macosx", "network trash folder", "temporary items",  # macOS
    "$recycle.bin", "recycler", "recycled", "system volume information", "found.000",  # Windows
    "lost+found",  # Linux
    "@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "~snapshot",  # NAS
}  # fmt: skip


def load_image_folder(folder: Path, size: int | tuple[int, int], grey: bool) -> Dataset:
    """Read all images below a folder, sorted by path.

    Images are rotated by their EXIF tag, center-cropped to the aspect ratio of ``size``, resized
    (Lanczos) and composited on black. Of an animation the first frame is read. Sub-folders that
    hold images are the classes, in the order of their names. Hidden files, and the folders of
    systems and network storage, are passed over. Warnings list these, unreadable files, and the
    suffixes of other files, which are skipped.

    Args:
        folder: Folder of images, or of one folder per class.
        size: Pixels a side, or (height, width).
        grey: Return one channel instead of three.

    Returns:
        Data set named ``"images"``, uint8 ``[N, H, W, C]``, with labels if there are classes.

    Raises:
        DataError: If no image can be read, or some images are in class folders and others are not.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise DataError(f"size must be 1 pixel or more; got {height}×{width}")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: choose a folder of images")
    try:  # sorted by parts, so that the images of a class stay together
        found = sorted(path.relative_to(folder).parts for path in _walk(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error}): check its permissions") from error
    system = [parts for parts in found if any(map(_is_system, parts))]
    found = [parts for parts in found if not any(map(_is_system, parts))]
    if count := sum(_suffix(parts) in _SUFFIXES for parts in system):
        names = sorted({next(filter(_is_system, parts)) for parts in system})
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        log.warning(
            "%s: %s images are passed over, because they are hidden or in folders of the system: "
            "%s%s",
            folder, f"{count:,}", ", ".join(names[:5]), more,
        )  # fmt: skip
    files = [parts for parts in found if _suffix(parts) in _SUFFIXES]
    if others := sorted({_suffix(parts) for parts in found} - _SUFFIXES):
        kinds = ", ".join(suffix or "no suffix" for suffix in others[:5])
        log.warning(
            "%s: %s other files are skipped (%s): save images as one of %s",
            folder, f"{len(found) - len(files):,}", kinds, ", ".join(FORMATS),
        )  # fmt: skip
    loose = sum(len(parts) == 1 for parts in files)
    if 0 < loose < len(files):
        raise DataError(
            f"{folder} holds {loose:,} images outside its sub-folders, which are the classes: move "
            "them into a sub-folder, or move all images into one folder without classes"
        )
    images = np.empty((len(files), height, width, 1 if grey else 3), np.uint8)
    read: list[tuple[str, ...]] = []
    broken: list[str] = []
    with show_progress(len(files), "image", desc="reading", delay=1) as bar, any_image_size():
        for parts in files:
            try:
                images[len(read)] = _read_image(folder.joinpath(*parts), height, width, grey)
            except Exception as error:  # Pillow raises many types for a broken file
                broken.append(f"{'/'.join(parts)} ({error})")
            else:
                read.append(parts)
            bar.update()
    if not read:
        tried = f": {broken[0]}" if broken else ""
        raise DataError(
            f"{folder} holds no readable image{tried}. Choose a folder of {one_of(FORMATS)} files"
        )
    note = ""
    if broken:
        note = f"{len(broken):,} unreadable files left out"
        more = f"; and {len(broken) - 5:,} more" if len(broken) > 5 else ""
        log.warning("%s: %s: %s%s", folder, note, "; ".join(broken[:5]), more)
    classes = () if loose else tuple(sorted({parts[0] for parts in read}))
    labels = np.array([classes.index(parts[0]) for parts in read], np.int64) if classes else None
    images = images[: len(read)]
    return Dataset("images", images, labels, classes, note, folder=folder.resolve().name)


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield all files below a folder, except in folders of the system that cannot be read."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        if above and _is_system(folder.name):
            return
        raise
    above = (*above, folder.resolve())
    for path in paths:
        if path.is_dir():
            if path.resolve() not in above:  # a link to a parent would recurse without end
                yield from _walk(path, above)
        elif path.is_file() or not path.exists():  # FIFOs would block; reading a dead link fails
            yield path


def _is_system(name: str) -> bool:
    """Return True for the name of a hidden file or folder, or of a folder of the system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _suffix(parts: tuple[str, ...]) -> str:
    return Path(parts[-1]).suffix.lower()


def _read_image(path: Path, height: int, width: int, grey: bool) -> npt.NDArray[np.uint8]:
    """Read an image file as uint8 ``[H, W, C]``."""
    with path.open("rb") as file:
        image = open_image(file)
    return flatten_alpha(fit_image(image, height, width, 1 if grey else 3, "cover"))
