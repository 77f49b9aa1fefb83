"""Build of the native CPU code: compiles the C++ for this machine, caches and loads it.

For each ISA, best first, a build is taken from

1. the package, if its wheel brought builds (``prebuild.py``) and ``CXX`` is not set;
2. the cache, if this compiler built it before;
3. the system's compiler, which builds it into the cache.

Without a compiler, the package's build or any compiler's in the cache is used. The hash of sources
and flags is part of every file name, so a build of other sources is never loaded.

Environment variables: ``CXX`` is the compiler command, ``SCANLINE_CACHE`` the folder of builds
(default ``~/.cache/scanline``), ``SCANLINE_CXXFLAGS`` adds compiler flags (such as
``-fsanitize=address``), ``SCANLINE_ISA`` is the ISA to use instead of the CPU's best.
"""

from __future__ import annotations

import ctypes
import errno
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
from scanline.kernels.native.cpu import ISAS, cpu, cpu_isas

log = logging.getLogger("scanline.native")

FOLDER = Path(__file__).parent
PREBUILT = FOLDER / "prebuilt"  # only installed wheels have it
DECODER, TRAINING = FOLDER / "decoder.cpp", FOLDER / "training" / "training.cpp"
FLAGS = (
    "-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread",
    "-fvisibility=hidden",
)  # fmt: skip
# Matches what g++ and clang++ print if one of their subprocesses was killed or ran out of memory.
# Their exit status does not tell this from a compile error.
_KILLED = re.compile(
    r"\w+ signal terminated program \w+|command: (Killed|Terminated)"
    r"|out of memory|memory exhausted"
)
_FULL = re.compile("No space left on device|Disk quota exceeded")
_NOEXEC = getattr(os, "ST_NOEXEC", 0)  # only Linux has it
INSTALL = "install g++ (`apt-get install g++`) or clang, or set CXX to a compiler"


# Builds that could not be cached, by their path in the cache, so that a second model reuses them.
_private: dict[Path, ctypes.CDLL] = {}


class NativeBuildError(RuntimeError):
    """The native code cannot be built or run; the message says why and what to do."""


class InterruptedBuildError(NativeBuildError):
    """The compiler was interrupted, which does not mean that it cannot build the code."""


class FullDiskError(InterruptedBuildError):
    """The disk is full."""


class BuildFolderError(InterruptedBuildError):
    """There is no folder to build in from which code may be executed."""


class UnloadableBuildError(InterruptedBuildError):
    """The compiler's output cannot be loaded, whatever the folder and the ISA."""


def _words(variable: str) -> list[str]:
    """Split an environment variable into words like a shell."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise NativeBuildError(f"{variable} cannot be parsed: {str(error).lower()}") from None


def find_compiler() -> list[str]:
    """Return the C++ compiler's command; raise ``NativeBuildError`` if there is none."""
    named = _words("CXX")
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    missing = f"CXX is {named[0]!r}, which does not exist" if named else "there is no C++ compiler"
    raise NativeBuildError(f"{missing}: {INSTALL}")


def _cache() -> Path:
    try:
        return cache_folder()
    except CacheFolderError as error:
        raise NativeBuildError(str(error)) from error


def run_compiler(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a compiler with its temporary files in ``folder``, and return its output."""
    env = os.environ | {"LC_ALL": "C"}  # English messages
    if folder is not None:
        env["TMPDIR"] = str(folder)
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", env=env, check=False
        )
    except OSError as error:
        raise NativeBuildError(f"{command[0]} cannot be run ({error}): {INSTALL}") from error
    if done.returncode < 0:
        name = signal.strsignal(-done.returncode) or "unknown"
        lines = done.stderr.strip().splitlines()
        output = f", with the output {lines[0]!r}" if lines else ""
        raise InterruptedBuildError(
            f"{shlex.join(command)} was killed by signal {-done.returncode} ({name}){output}: "
            "try again"
        )
    if done.returncode != 0:
        if killed := _KILLED.search(done.stderr):
            raise InterruptedBuildError(
                f"{shlex.join(command)} was killed ({killed[0]}), perhaps because memory is short: "
                "try again"
            )
        lines = done.stderr.strip().splitlines() or ["no output"]
        reason = next((line for line in lines if _FULL.search(line) or "error" in line), lines[0])
        if _FULL.search(done.stderr):
            raise FullDiskError(
                f"the disk is full ({reason}): free some space, or set SCANLINE_CACHE to a folder "
                "on another disk"
            )
        raise NativeBuildError(f"{shlex.join(command)} failed ({reason}); set CXX to another one")
    return done.stdout


def check_isa(isa: str) -> None:
    """Raise ``ValueError`` for an unknown ISA, ``NativeBuildError`` if the CPU lacks it."""
    if isa not in ISAS:
        raise ValueError(f"isa must be one of {', '.join(ISAS)}, not {isa!r}")
    if isa not in (available := cpu_isas()):
        raise NativeBuildError(f"this CPU ({cpu()[0]}) has no {isa}; it has {', '.join(available)}")


def isa_from_environment() -> str | None:
    """Return ``SCANLINE_ISA``, or None if it is not set.

    Raises:
        ValueError: The CPU lacks it. After a ``NativeBuildError``, callers would use slower code
            instead, which may draw other bytes.
    """
    isa = os.environ.get("SCANLINE_ISA") or None
    if isa is not None and isa not in (available := cpu_isas()):
        raise ValueError(
            f"SCANLINE_ISA must be one of {', '.join(available)} on this CPU, not {isa!r}"
        )
    return isa


def load_build(isa: str | None = None, source: Path = DECODER) -> ctypes.CDLL:
    """Load a source's build for an ISA, building it if needed.

    Args:
        isa: Name of the ISA; by default ``SCANLINE_ISA``, or the best one that the CPU has and the
            compiler knows.
        source: The C++ file.

    Raises:
        ValueError: The ISA is unknown, or SCANLINE_ISA names one that the CPU lacks.
        NativeBuildError: The CPU lacks the ISA, or the code cannot be built.
        InterruptedBuildError: The compiler was interrupted.
    """
    if isa is not None:
        check_isa(isa)
    else:
        isa = isa_from_environment()
    available = cpu_isas()
    failures: list[NativeBuildError] = []
    for one in available if isa is None else [isa]:
        try:
            library = _load(one, source)
        except InterruptedBuildError:
            raise  # would happen with another ISA too
        except NativeBuildError as error:  # an older compiler may not know the newest ISA
            failures.append(error)
            continue
        if failures:
            log.warning("using %s instead of this CPU's best ISA: %s", one, failures[0])
        return library
    raise failures[0]


def _load(isa: str, source: Path) -> ctypes.CDLL:
    prebuilt = PREBUILT / prebuilt_name(isa, source)
    if not os.environ.get("CXX") and prebuilt.is_file() and (library := _open(prebuilt)):
        return library
    try:
        compiler = find_compiler()
    except NativeBuildError:
        # Without a compiler use any compiler's build of this source, the newest first.
        built = sorted(_cache().glob(f"{_stem(isa, source)}-*.so"), key=_age)
        for path in (prebuilt, *built):
            if path.is_file() and (library := _open(path)):
                return library
        raise
    name = _name(isa, compiler, source)
    path = _cache() / name
    if path in _private:
        return _private[path]
    exists = os.path.isfile(path)  # noqa: PTH113 - no error without permission
    library = (_open(path) if exists else None) or _build_cached(compiler, isa, source, path)
    if library is None:
        library = _private[path] = _build_private(compiler, isa, source, name)
    return library


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


def _flags(isa: str) -> list[str]:
    return [*FLAGS, *ISAS[isa].flags, *_words("SCANLINE_CXXFLAGS")]


def included_files(source: Path) -> list[Path]:
    """Return a source and all headers that it includes by ``#include "..."``, also indirectly."""
    files = [source.resolve()]
    for path in files:  # the loop also visits the headers that it appends
        for name in re.findall(r'^\s*#\s*include\s*"(.+?)"', path.read_text("utf-8"), re.MULTILINE):
            header = (path.parent / name).resolve()
            if header not in files:
                files.append(header)
    return files


def _stem(isa: str, source: Path) -> str:
    """Return the start of a build's file name, with a hash of its flags and sources."""
    key = hashlib.sha256("\0".join(_flags(isa)).encode())
    for part in included_files(source):
        key.update(part.read_bytes())
    return f"{source.stem}-{isa}-{key.hexdigest()[:16]}"


def prebuilt_name(isa: str, source: Path) -> str:
    """Return the file name of a build in a wheel, whose compiler does not matter."""
    return f"{_stem(isa, source)}.so"


def _name(isa: str, compiler: Sequence[str], source: Path) -> str:
    """Return the file name of a build, which depends on the compiler's version and arguments."""
    version = run_compiler([*compiler, "--version"])
    key = hashlib.sha256("\0".join([version, *compiler[1:]]).encode())
    return f"{_stem(isa, source)}-{key.hexdigest()[:8]}.so"


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s is not used, because it cannot be loaded: %s", path, error)
        return None


def compile_library(
    compiler: Sequence[str],
    isa: str,
    source: Path,
    path: Path,
    *options: str,
    to_load: bool = True,
) -> None:
    """Compile a source for an ISA, with further compiler options, into the file ``path``.

    ``to_load`` raises ``OSError`` if code in the file's folder may not be executed.
    """
    with atomic_path(path) as built:
        if to_load and _NOEXEC and os.statvfs(built.parent).f_flag & _NOEXEC:
            raise OSError("it is mounted noexec")
        command = [*compiler, *_flags(isa), *options, str(source), "-o", str(built)]
        run_compiler(command, built.parent)
        built.chmod(0o755)


def _load_compiled(path: Path) -> ctypes.CDLL:
    """Load a new build; raise ``OSError`` if code in its folder may not be executed."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # without an errno
        if any(os.strerror(code) in str(error) for code in (errno.EPERM, errno.EACCES)):
            raise
        raise UnloadableBuildError(
            f"the compiled code cannot be loaded ({error}): set CXX to another compiler"
        ) from error


def _build_cached(
    compiler: Sequence[str], isa: str, source: Path, path: Path
) -> ctypes.CDLL | None:
    """Build into the cache and load. Log a warning and return None if the cache is not usable."""
    try:
        log.info("building %s into %s", source.name, path)
        compile_library(compiler, isa, source, path)
        return _load_compiled(path)
    except (OSError, FullDiskError) as error:
        log.warning(
            "cannot cache builds in %s (%s); set SCANLINE_CACHE to a writable folder that is not "
            "mounted noexec, to build once instead of at every start", path.parent, error,
        )  # fmt: skip
        return None


def _build_private(compiler: Sequence[str], isa: str, source: Path, name: str) -> ctypes.CDLL:
    """Build into a temporary folder and load."""
    try:
        with tempfile.TemporaryDirectory(prefix="scanline-") as folder:
            path = Path(folder) / name
            compile_library(compiler, isa, source, path)
            return _load_compiled(path)  # stays mapped after the file is deleted
    except OSError as error:
        raise BuildFolderError(
            f"neither the cache nor the temporary folder can be used for builds ({error}); set "
            "SCANLINE_CACHE to a writable folder that is not mounted noexec"
        ) from error
