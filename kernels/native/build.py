"""The build of the native CPU code: C++ compiled for this machine, kept, and loaded.

The decoder's and the training's C++ are each built by the system's compiler on first use, once for
each source, compiler with its arguments, and ISA. ``python -m scanline.kernels.native.build``
builds for every ISA beforehand: an image made so runs without a compiler.

Environment: ``CXX`` names the compiler, ``SCANLINE_CACHE`` the folder of finished builds (default
``~/.cache/scanline``), ``SCANLINE_CXXFLAGS`` adds flags (``-fsanitize=address``).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scanline.kernels.cache import CacheFolderError, atomic_path, cache_folder
from scanline.kernels.native.cpu import ISAS, cpu, cpu_isas, machine_isas

log = logging.getLogger("scanline.native")

FOLDER = Path(__file__).parent
DECODER, TRAINING = FOLDER / "decoder.cpp", FOLDER / "training" / "training.cpp"
FLAGS = (
    "-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread",
    "-fvisibility=hidden",
)  # fmt: skip
COMPILE_TIMEOUT = 300  # seconds for one run of the compiler
# What g++ and clang++ say where what they started was killed; their own status is that of an error.
_KILLED = re.compile(r"\w+ signal terminated program \w+|command: (Killed|Terminated)")
_FULL = "No space left on device"
_NOEXEC = getattr(os, "ST_NOEXEC", 0)  # which other systems do not tell
INSTALL = "install g++ (`apt-get install g++`) or clang, or name a compiler in CXX"


# What could not be kept, by where it would be: each of several models would build it again.
_private: dict[Path, ctypes.CDLL] = {}


class NativeBuildError(RuntimeError):
    """The native code cannot be built or run here; the message says why and what to do."""


class InterruptedBuildError(NativeBuildError):
    """The compiler was ended before it was done, which says nothing of what it can build."""


class FullDiskError(InterruptedBuildError):
    """There is no room for the build where it is made."""


class BuildFolderError(InterruptedBuildError):
    """There is no folder to build in whose files may be run."""


def _words(variable: str) -> list[str]:
    """Read an environment variable as a shell would."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise NativeBuildError(f"{variable} cannot be read: {str(error).lower()}") from None


def find_compiler() -> list[str]:
    """Give the C++ compiler's command; raises ``NativeBuildError`` where there is none."""
    named = _words("CXX")
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    missing = f"CXX names {named[0]!r}, which is not there" if named else "there is no C++ compiler"
    raise NativeBuildError(f"{missing}: {INSTALL}")


def _cache() -> Path:
    try:
        return cache_folder()
    except CacheFolderError as error:
        raise NativeBuildError(str(error)) from error


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a compiler, its temporary files in a ``folder``; gives what it prints."""
    env = os.environ | ({} if folder is None else {"TMPDIR": str(folder)})
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT, env=env
        )
    except OSError as error:
        raise NativeBuildError(f"{command[0]} did not run ({error}): {INSTALL}") from error
    except subprocess.TimeoutExpired as error:
        raise InterruptedBuildError(
            f"{shlex.join(command)} was not done after {COMPILE_TIMEOUT} s and was ended: try "
            "again when the machine has less to do"
        ) from error
    if done.returncode < 0:
        ended = signal.strsignal(-done.returncode) or "unknown"
        said = f", saying {done.stderr.strip().splitlines()[0]!r}" if done.stderr.strip() else ""
        raise InterruptedBuildError(
            f"{shlex.join(command)} was ended by signal {-done.returncode} ({ended}){said}: "
            "try again"
        )
    if done.returncode != 0:
        if killed := _KILLED.search(done.stderr):
            raise InterruptedBuildError(
                f"{shlex.join(command)} was ended from outside ({killed[0]}), as where memory is "
                "short: try again"
            )
        lines = done.stderr.strip().splitlines() or ["no output"]
        reason = next((line for line in lines if _FULL in line or "error" in line), lines[0])
        if _FULL in done.stderr:
            raise FullDiskError(
                f"there is no room to build ({reason}): make some, or set SCANLINE_CACHE to a "
                "folder that has it"
            )
        raise NativeBuildError(f"{shlex.join(command)} failed ({reason}); name another one in CXX")
    return done.stdout


def check_isa(isa: str) -> None:
    """Raise ``ValueError`` on an unknown ISA, ``NativeBuildError`` on one that the CPU lacks."""
    if isa not in ISAS:
        raise ValueError(f"isa must be one of {', '.join(ISAS)}, not {isa!r}")
    if isa not in (available := cpu_isas()):
        raise NativeBuildError(f"this CPU ({cpu()[0]}) has no {isa}; it has {', '.join(available)}")


def load_build(isa: str | None = None, source: Path = DECODER) -> ctypes.CDLL:
    """Build a source for an ISA if need be, and load it; the best that can be had by default.

    Raises ``ValueError`` on an unknown ISA, and ``NativeBuildError`` where the CPU lacks it or the
    code cannot be built; ``InterruptedBuildError``, one of them, where the compiler was ended.
    """
    if isa is not None:
        check_isa(isa)
    available = cpu_isas()
    failures: list[NativeBuildError] = []
    for one in available if isa is None else [isa]:
        try:
            library = _load(one, source)
        except InterruptedBuildError:
            raise  # a lesser ISA is no cure
        except NativeBuildError as error:  # an older compiler may not know the newest instructions
            failures.append(error)
            continue
        if failures:
            log.warning("using %s, not this CPU's best: %s", one, failures[0])
        return library
    raise failures[0]


def _load(isa: str, source: Path) -> ctypes.CDLL:
    try:
        compiler = find_compiler()
    except NativeBuildError:
        # Any compiler's build of this source will do, newest first.
        for path in sorted(_cache().glob(f"{_stem(isa, source)}-*.so"), key=_age):
            if library := _open(path):
                return library
        raise
    name = _name(isa, compiler, source)
    path = _cache() / name
    if path in _private:
        return _private[path]
    there = os.path.isfile(path)  # noqa: PTH113 - no error where one may not look
    library = (_open(path) if there else None) or _keep(compiler, isa, source, path)
    if library is None:
        library = _private[path] = _load_private(compiler, isa, source, name)
    return library


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # gone meanwhile
        return 0.0


def _flags(isa: str) -> list[str]:
    return [*FLAGS, *ISAS[isa].flags, *_words("SCANLINE_CXXFLAGS")]


def _stem(isa: str, source: Path) -> str:
    """Name an ISA's builds of a source. The flags say all that a build assumes of the CPU."""
    key = hashlib.sha256("\0".join(_flags(isa)).encode())
    for part in (source, *sorted({*FOLDER.glob("*.h"), *source.parent.glob("*.h")})):
        key.update(part.read_bytes())
    return f"{source.stem}-{isa}-{key.hexdigest()[:16]}"


def _name(isa: str, compiler: Sequence[str], source: Path) -> str:
    """Name a compiler's build: by what it says that it is, and the arguments that CXX gives it."""
    key = hashlib.sha256("\0".join([_run([*compiler, "--version"]), *compiler[1:]]).encode())
    return f"{_stem(isa, source)}-{key.hexdigest()[:8]}.so"


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s does not load, building it again: %s", path, error)
        return None


def _build(
    compiler: Sequence[str], isa: str, source: Path, path: Path, to_load: bool = True
) -> None:
    with atomic_path(path) as built:
        if to_load and _NOEXEC and os.statvfs(built.parent).f_flag & _NOEXEC:
            raise OSError("files there may not be run: it is mounted noexec")
        _run([*compiler, *_flags(isa), str(source), "-o", str(built)], built.parent)
        built.chmod(0o755)


def _keep(compiler: Sequence[str], isa: str, source: Path, path: Path) -> ctypes.CDLL | None:
    """Build into the cache and load; None, with a warning, where the cache cannot be used."""
    try:
        log.info("building %s into %s", source.name, path)
        _build(compiler, isa, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, FullDiskError) as error:
        log.warning(
            "cannot keep builds in %s (%s); set SCANLINE_CACHE to a writable folder, whose files "
            "may be run, to build once instead of at every start", path.parent, error,
        )  # fmt: skip
        return None


def _load_private(compiler: Sequence[str], isa: str, source: Path, name: str) -> ctypes.CDLL:
    try:
        with tempfile.TemporaryDirectory(prefix="scanline-") as folder:
            path = Path(folder) / name
            _build(compiler, isa, source, path)
            return ctypes.CDLL(str(path))  # stays mapped when the file is gone
    except OSError as error:
        raise BuildFolderError(
            f"neither the cache nor the folder of temporary files will do to build in ({error}); "
            "set SCANLINE_CACHE to a writable folder, whose files may be run"
        ) from error


def build(isa: str, source: Path) -> Path:
    """Build a source for an ISA of this CPU's kind into the cache; gives the file."""
    compiler, folder = find_compiler(), _cache()
    path = folder / _name(isa, compiler, source)
    _build(compiler, isa, source, path, to_load=False)
    return path


def build_all() -> list[Path]:
    """Build everything for every ISA of this CPU's kind into the cache; gives the files."""
    return [build(isa, source) for source in (DECODER, TRAINING) for isa in machine_isas()]


if __name__ == "__main__":
    for built in build_all():
        print(built)  # noqa: T201
