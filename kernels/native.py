"""The native CPU decoder's build, and its C ABI as Python sees it.

The C++ beside this file is built by the system's compiler on first use, once for each source,
compiler and ISA, and loaded with ctypes, which releases the GIL while it runs. ``python -m
kernels.native`` builds for every ISA beforehand: an image made so runs without a compiler.

Environment: ``CXX`` names the compiler, ``SCANLINE_CACHE`` the folder of finished builds (default
``~/.cache/scanline``), ``SCANLINE_CXXFLAGS`` adds flags (``-fsanitize=address``).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("scanline.native")

SOURCE = Path(__file__).with_name("native.cpp")
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
# Best first: the compiler's flags, and what Linux calls the features they need.
_HAS_AVX2 = frozenset({"avx2", "fma"})
_HAS_AVX512 = _HAS_AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
ISAS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "avx512bf16": ((*_AVX512, "-mavx512bf16"), _HAS_AVX512 | {"avx512_bf16"}),
    "avx512": (_AVX512, _HAS_AVX512),
    "avx2": (_AVX2, _HAS_AVX2),
    "portable": ((), frozenset()),
}
FLAGS = (
    "-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread",
    "-fvisibility=hidden",
)  # fmt: skip
_BAD_SLOTS = 1
INSTALL = "install g++ (`apt-get install g++`) or clang, or name a compiler in CXX"


class NativeBuildError(RuntimeError):
    """The native code cannot be built or run here; the message says why and what to do."""


@functools.cache
def cpu() -> tuple[str, frozenset[str]]:
    """Give the CPU's name and its features, none where the system does not tell."""
    name, features = platform.processor() or platform.machine(), frozenset[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return name, features
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() == "flags":
            features = frozenset(value.split())
    return name, features


def cpu_isas() -> list[str]:
    """Give the ISAs that this CPU has, best first."""
    return [isa for isa, (_, needed) in ISAS.items() if needed <= cpu()[1]]


def usable_cores() -> int:
    """Count the physical cores that this process may use, within its container's quota."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
    cores = set()
    for number in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            cores.add(topology.read_text())
        except OSError:
            cores.add(str(number))
    count = len(cores)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def find_compiler() -> list[str]:
    """Give the C++ compiler's command; raises ``NativeBuildError`` where there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    missing = f"CXX names {named[0]!r}, which is not there" if named else "there is no C++ compiler"
    raise NativeBuildError(f"{missing}: {INSTALL}")


def cache_folder() -> Path:
    """Give the folder of finished builds, which may not exist yet."""
    if named := os.environ.get("SCANLINE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanline"


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} did not run ({error}): {INSTALL}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise NativeBuildError(f"{shlex.join(command)} failed ({reason}); name another one in CXX")
    return done.stdout


def load_library(isa: str | None = None) -> ctypes.CDLL:
    """Build the native code for an ISA if need be, the CPU's best by default, and load it.

    Raises ``ValueError`` on an unknown ISA, and ``NativeBuildError`` where the CPU lacks it or the
    code cannot be built.
    """
    if isa is not None and isa not in ISAS:
        raise ValueError(f"isa must be one of {', '.join(ISAS)}, not {isa!r}")
    available = cpu_isas()
    if isa is not None and isa not in available:
        raise NativeBuildError(f"this CPU ({cpu()[0]}) has no {isa}; it has {', '.join(available)}")
    isa = isa or available[0]
    try:
        compiler = find_compiler()
    except NativeBuildError:
        # Any compiler's build of this source will do, newest first.
        for path in sorted(cache_folder().glob(f"{_stem(isa)}-*.so"), key=_age):
            if library := _open(path):
                return _declare(library)
        raise
    name = _name(isa, compiler)
    path = cache_folder() / name
    library = (_open(path) if path.is_file() else None) or _keep(compiler, isa, path)
    return _declare(library or _load_private(compiler, isa, name))


def _age(path: Path) -> float:
    return -path.stat().st_mtime


def _flags(isa: str) -> list[str]:
    return [*FLAGS, *ISAS[isa][0], *shlex.split(os.environ.get("SCANLINE_CXXFLAGS", ""))]


def _stem(isa: str) -> str:
    """Name an ISA's builds of this source. The flags say all that a build assumes of the CPU."""
    key = hashlib.sha256("\0".join(_flags(isa)).encode())
    for source in (SOURCE, *sorted(SOURCE.parent.glob("native*.h"))):
        key.update(source.read_bytes())
    return f"native-{isa}-{key.hexdigest()[:16]}"


def _name(isa: str, compiler: Sequence[str]) -> str:
    version = hashlib.sha256(_run([*compiler, "--version"]).encode())
    return f"{_stem(isa)}-{version.hexdigest()[:8]}.so"


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s does not load, building it again: %s", path, error)
        return None


def _build(compiler: Sequence[str], isa: str, path: Path) -> None:
    """Compile into a file of its own, then rename it: two processes at once do not meet."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        _run([*compiler, *_flags(isa), str(SOURCE), "-o", partial])
        Path(partial).chmod(0o755)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _keep(compiler: Sequence[str], isa: str, path: Path) -> ctypes.CDLL | None:
    """Build into the cache and load; None, with a warning, where the cache cannot be used."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log.info("building the native decoder into %s", path)
        _build(compiler, isa, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning(
            "cannot keep builds in %s (%s); set SCANLINE_CACHE to a writable folder to build once "
            "instead of at every start", path.parent, error,
        )  # fmt: skip
        return None


def _load_private(compiler: Sequence[str], isa: str, name: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="scanline-") as folder:
        path = Path(folder) / name
        _build(compiler, isa, path)
        try:
            return ctypes.CDLL(str(path))  # stays mapped when the file is gone
        except OSError as error:
            raise NativeBuildError(
                f"the native code was built but does not load ({error}); set SCANLINE_CACHE to a "
                "folder from which code may be run"
            ) from error


def build_all() -> list[Path]:
    """Build for every ISA into the cache, whatever this CPU has; gives the files."""
    compiler, folder = find_compiler(), cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / _name(isa, compiler) for isa in ISAS]
    for isa, path in zip(ISAS, paths, strict=True):
        _build(compiler, isa, path)
    return paths


def _fields(names: str, kind: type[ctypes.c_int32 | ctypes.c_void_p]) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Config(ctypes.Structure):
    """Sizes and options, as ``Config`` in native_weights.h."""

    _fields_ = _fields(
        "height width channels step_channels neighbourhood sinusoidal categorical pre_norm gelu "
        "start_given first_value classes n_layers n_heads d_model d_ff head_outputs draws "
        "step_draws max_slots bf16 threads",
        ctypes.c_int32,
    )


class LayerWeights(ctypes.Structure):
    """A layer's tensors, as in native_weights.h."""

    _fields_ = _fields(
        "query_weight query_bias key_weight key_bias value_weight value_bias out_weight out_bias "
        "linear1_weight linear1_bias linear2_weight linear2_bias "
        "norm1_weight norm1_bias norm2_weight norm2_bias",
        ctypes.c_void_p,
    )


class Weights(ctypes.Structure):
    """The network's tensors, null where it has none, as in native_weights.h."""

    _fields_ = [
        *_fields(
            "value_embedding start tables linear_weight linear_bias code row column channel label "
            "norm_weight norm_bias head_weight head_bias head_tables",
            ctypes.c_void_p,
        ),
        ("layers", ctypes.POINTER(LayerWeights)),
    ]


class Inputs(ctypes.Structure):
    """The decoder's arrays, as in native_weights.h."""

    _fields_ = _fields("canvas bits positions known noise temperature label", ctypes.c_void_p)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    handle, integer, array = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "open": (
            handle,
            [
                ctypes.POINTER(Config), ctypes.POINTER(Weights), ctypes.POINTER(Inputs),
                ctypes.c_char_p, integer,
            ],
        ),
        "close": (None, [handle]),
        "reset": (integer, [handle, array, integer]),
        "step": (integer, [handle, array, integer, integer]),
        "prefill": (integer, [handle, array, array, integer]),
        "states": (array, [handle]),
        "head_padded": (integer, [handle]),
        "trace": (None, [handle, array]),
        "measure": (None, [integer, ctypes.POINTER(ctypes.c_double)]),
        "isa": (ctypes.c_char_p, []),
    }  # fmt: skip
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"scanline_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Peaks(NamedTuple):
    """The best that a machine does: operations and bytes a second, 0 where not measured."""

    bf16_operations: float
    float32_operations: float
    cache_bytes: float
    memory_bytes: float


def measure_peaks(library: ctypes.CDLL, threads: int) -> Peaks:
    """Measure this machine with the decoder's own kernels, which takes some seconds."""
    peaks = (ctypes.c_double * 4)()
    library.scanline_measure(threads, peaks)
    return Peaks(*peaks)


def _address(array: NDArray[np.generic] | None) -> int | None:
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise ValueError("native arrays must be contiguous")
    return array.ctypes.data


class NativeDecoder:
    """One network with its slots, in native code; every call runs without the GIL.

    ``sizes`` are ``Config``'s fields; ``weights`` and ``layers`` float32 tensors by the names of
    ``Weights`` and ``LayerWeights``, copied; ``inputs`` the arrays of ``Inputs``, used in place.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        sizes: Mapping[str, int],
        weights: Mapping[str, NDArray[np.float32] | None],
        layers: Sequence[Mapping[str, NDArray[np.float32]]],
        inputs: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self._library = library
        self.isa: str = library.scanline_isa().decode()
        self._inputs = dict(inputs)  # keeps them alive
        packed = (LayerWeights * len(layers))(
            *(LayerWeights(**{name: _address(t) for name, t in layer.items()}) for layer in layers)
        )
        tensors = Weights(**{name: _address(t) for name, t in weights.items()}, layers=packed)
        config = Config(**sizes)
        arrays = Inputs(**{name: _address(array) for name, array in inputs.items()})
        reason = ctypes.create_string_buffer(200)
        handle = library.scanline_open(config, tensors, arrays, reason, len(reason))
        if not handle:
            raise NativeBuildError(f"the native decoder cannot start: {reason.value.decode()}")
        self._handle = ctypes.c_void_p(handle)
        self.close = weakref.finalize(self, library.scanline_close, self._handle)
        self.close.atexit = False  # another thread may be in a step still
        count, heads = sizes["max_slots"], sizes["n_heads"]
        K = sizes["d_model"] // heads
        shape = (count, sizes["n_layers"], heads, K + 1, library.scanline_head_padded(self._handle))
        memory = (ctypes.c_float * int(np.prod(shape))).from_address(
            library.scanline_states(self._handle)
        )
        # Every slot's state, [N, L, H, K + 1, V padded]: kv, and z in the last row. For tests;
        # valid as long as this object.
        self.states: NDArray[np.float32] = np.ctypeslib.as_array(memory).reshape(shape)
        self._trace: NDArray[np.float32] | None = None

    def _check(self, status: int) -> None:
        if status == _BAD_SLOTS:
            raise ValueError("slots must be -1 or different numbers below max_slots")
        if status:
            raise ValueError("an image has no such number of pixels to prefill")

    def reset(self, slots: NDArray[np.int32]) -> None:
        """Zero the state and the position of these slots."""
        self._check(self._library.scanline_reset(self._handle, slots.ctypes.data, slots.size))

    def step(self, slots: NDArray[np.int32], n: int) -> None:
        """Advance each slot by up to ``n`` pixels."""
        self._check(self._library.scanline_step(self._handle, slots.ctypes.data, slots.size, n))

    def prefill(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Absorb the first ``lengths`` pixels of each slot; no slot is -1."""
        self._check(
            self._library.scanline_prefill(
                self._handle, slots.ctypes.data, lengths.ctypes.data, slots.size
            )
        )

    def trace(self, parameters: NDArray[np.float32] | None) -> None:
        """From now on write each row's head parameters to ``[N, steps, head_outputs]`` too."""
        self._trace = parameters
        self._library.scanline_trace(self._handle, _address(parameters))


if __name__ == "__main__":
    for built in build_all():
        print(built)  # noqa: T201
