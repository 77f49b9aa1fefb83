"""Search for the files of published data sets, and their download."""

import hashlib
import logging
import os
from pathlib import Path

from scanline.kernels.cache import atomic_path, cache_folder
from scanline.model.data.catalog import PublishedSet
from scanline.model.progress import show_progress

log = logging.getLogger("scanline.data")


class DataError(ValueError):
    """Error in the data; the message tells the user what to do."""


class MissingDataError(DataError):
    """Error raised if none of the searched folders holds the data set."""


def find(published: PublishedSet, split: str, data_dir: Path | None = None) -> list[Path]:
    """Return the paths of a split's files, in order, or of the archive that holds them.

    Args:
        published: The data set.
        split: Key of its ``splits``.
        data_dir: Folder to search; None searches the folders listed at ``load_dataset``. The first
            folder that holds all files is used.

    Raises:
        MissingDataError: If no folder holds all files.
    """
    wanted = [file.name for file in published.splits[split]]
    roots, incomplete = _roots(data_dir), ""
    for folder in (root / sub for root in roots for sub in published.folders):
        found = {file: path for file in wanted if (path := _present(folder, file))}
        if len(found) == len(wanted):
            return list(found.values())
        if published.archive and (archive := _present(folder, published.archive)):
            return [archive]
        if found and not incomplete:
            missing = [file for file in wanted if file not in found]
            incomplete = f" ({folder} has some of them, but not {', '.join(missing)})"
    raise MissingDataError(
        f"no {published.name} {split} files in {' or '.join(map(str, roots))}{incomplete}: set "
        "--data-dir or SCANLINE_DATA_DIR to their folder, or add --download to fetch them"
    )


def download(published: PublishedSet, data_dir: Path | None = None) -> Path:
    """Download the published files of a data set and return their folder.

    Existing files with the right checksum are kept. Each file is verified before it replaces
    another.

    Args:
        published: The data set.
        data_dir: Folder to create the data set's folder in; None means ``SCANLINE_DATA_DIR``, else
            ``data/`` in the cache (``cache_folder``).

    Raises:
        DataError: If there is no network, the server answers with an error, or a file has another
            checksum.
    """
    folder = _roots(data_dir)[-1] / published.folders[0]
    for file, digest in published.downloads.items():
        _fetch(f"{published.url.rstrip('/')}/{file}", folder / file, digest)
    return folder


def _roots(data_dir: Path | None) -> list[Path]:
    """Return the folders to search: ``data_dir`` only, if given, else the default ones."""
    if data_dir is None and (configured := os.environ.get("SCANLINE_DATA_DIR")):
        data_dir = Path(configured)
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    checkout = Path(__file__).resolve().parents[2]
    return [checkout / "data", checkout.parent / "shared" / "data", cache_folder() / "data"]


def _present(folder: Path, file: str) -> Path | None:
    """Return the path of a file in a folder, compressed or not, under either common spelling."""
    for spelling in (file, file.replace("-idx", ".idx")):
        for suffix in ("", ".gz", ".xz"):
            path = folder / (spelling + suffix)
            try:
                if path.is_file():
                    return path
            except OSError:  # no permission, as for another user's cache
                return None
    return None


def _fetch(url: str, target: Path, digest: str) -> None:
    """Download a missing or damaged file, under a temporary name until it is verified."""
    import httpx  # slow to import, and needed for downloads only

    manual = f"or copy {target.name} into {target.parent}"
    try:
        if target.is_file():
            with target.open("rb") as present:
                if hashlib.file_digest(present, "sha256").hexdigest() == digest:
                    return
        with atomic_path(target) as part:
            if _stream(url, part) != digest:
                raise DataError(
                    f"{url} sent another file than the published one: try again, {manual}"
                )
        log.info("downloaded %s", target)
    except httpx.HTTPStatusError as error:
        status = f"{error.response.status_code} {error.response.reason_phrase}"
        raise DataError(f"{url} answered {status}: try again later, {manual}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(
            f"{url} cannot be downloaded ({error}): check the network, {manual}"
        ) from error
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error}): choose another folder with --data-dir or "
            "SCANLINE_DATA_DIR"
        ) from error


def _stream(url: str, path: Path) -> str:
    """Download ``url`` to ``path`` and return the SHA-256 of the file."""
    import httpx

    digest = hashlib.sha256()
    headers = {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(30, connect=10)
    with (
        httpx.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as reply,
        path.open("wb") as file,
    ):
        size = int(reply.raise_for_status().headers.get("Content-Length", 0)) or None
        with show_progress(size, "byte", desc=url) as bar:
            # Not decoded: some servers declare a .gz file as a Content-Encoding.
            for chunk in reply.iter_raw():
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
    return digest.hexdigest()
