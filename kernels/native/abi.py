"""Python bindings of the native CPU decoder (ctypes, which releases the GIL during calls)."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scanline.kernels.native.build import FOLDER, NativeBuildError, load_build

_HEADER = (FOLDER / "abi.h").read_text("utf-8")
_BAD_SLOTS = 1
# Number formats of matrix products, in the order of ``Format`` in formats.h.
Precision = Literal["float32", "bf16", "int16", "int8", "int10"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MEASUREMENT_ERROR = "this machine cannot be measured: not enough memory or threads"


def _fields(struct: str) -> list[tuple[str, type]]:
    """Return the fields of a struct in abi.h, which are all pointers or all 32-bit integers."""
    body = re.sub("//.*", "", _HEADER).split(f"struct {struct} {{")[1].split("};")[0]
    kind = ctypes.c_void_p if "*" in body else ctypes.c_int32
    return [(name, kind) for name in re.findall(r"(\w+)[,;]", body)]


class _Struct(ctypes.Structure):
    """A C struct that refuses unknown field names, which ctypes would silently ignore."""

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - {name for name, *_ in self._fields_}:
            raise ValueError(
                f"{type(self).__name__} in abi.h has no {', '.join(sorted(unknown))}: the native "
                "code must support or refuse it"
            )
        super().__init__(**values)


class Config(_Struct):
    """Sizes and options, ``Config`` in abi.h."""

    _fields_ = _fields("Config")


class LayerWeights(_Struct):
    """A layer's tensors, ``LayerWeights`` in abi.h."""

    _fields_ = _fields("LayerWeights")


class Weights(_Struct):
    """The network's tensors, null if absent; ``Weights`` in abi.h."""

    _fields_ = _fields("Weights")


class Arrays(_Struct):
    """The decoder's arrays, ``Arrays`` in abi.h."""

    _fields_ = _fields("Arrays")


def load_library(isa: str | None = None) -> ctypes.CDLL:
    """Load the decoder's library for an ISA, by default the CPU's best, building it if needed.

    Raises the errors of ``load_build``.
    """
    library = load_build(isa)
    handle, integer, array = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "open": (
            handle,
            [
                ctypes.POINTER(Config), ctypes.POINTER(Weights), ctypes.POINTER(Arrays),
                ctypes.c_char_p, integer,
            ],
        ),
        "close": (None, [handle]),
        "step": (integer, [handle, array, integer, integer]),
        "begin": (integer, [handle, array, array, integer]),
        "copy": (None, [handle, array, array, integer]),
        "states": (array, [handle]),
        "slot_state": (ctypes.c_int64, [ctypes.POINTER(Config)]),
        "trace": (None, [handle, array]),
        "partition": (None, [handle, integer, ctypes.POINTER(ctypes.c_int)]),
        "pass_counts": (None, [handle, ctypes.POINTER(ctypes.c_int64)]),
        "measure": (None, [integer, ctypes.POINTER(ctypes.c_double)]),
        "bandwidth": (ctypes.c_double, [integer, ctypes.c_int64]),
        "isa": (ctypes.c_char_p, []),
    }  # fmt: skip
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"scanline_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def slot_state(library: ctypes.CDLL, sizes: Mapping[str, int]) -> int:
    """Return the number of floats in a slot's state. ``sizes`` are ``Config``'s fields."""
    count: int = library.scanline_slot_state(Config(**sizes))
    return count


def precision_of(name: str) -> Precision:
    """Return the precision with this name; raise ``ValueError`` if there is none."""
    for known in PRECISIONS:
        if known == name:
            return known
    raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {name!r}")


def isa_of(library: ctypes.CDLL) -> str:
    """Return the name of the ISA that a library was built for."""
    name: bytes = library.scanline_isa()
    return name.decode()


class Peaks(NamedTuple):
    """Peak operations/s by precision, and bytes/s read from cache and memory."""

    float32_operations: float
    bf16_operations: float
    int16_operations: float
    int8_operations: float
    cache_bytes: float
    memory_bytes: float


class PassCounts(NamedTuple):
    """Totals of passes through a network: bytes are those of weights and attention sums."""

    passes: int
    rows: int
    bytes: int


def measure_peaks(library: ctypes.CDLL, threads: int) -> Peaks:
    """Measure this machine's peak performance, which takes a few seconds.

    Raises ``NativeBuildError`` if memory or threads are short.
    """
    peaks = (ctypes.c_double * 6)()
    library.scanline_measure(threads, peaks)
    if not all(peaks):
        raise NativeBuildError(MEASUREMENT_ERROR)
    return Peaks(*peaks)


def measure_bandwidth(library: ctypes.CDLL, threads: int, size: int) -> float:
    """Measure the bytes/s of repeatedly reading ``size`` bytes, which takes 0.25 s.

    Raises ``NativeBuildError`` if memory or threads are short.
    """
    rate: float = library.scanline_bandwidth(threads, size)
    if not rate:
        raise NativeBuildError(MEASUREMENT_ERROR)
    return rate


def _address(array: NDArray[np.generic] | None) -> int | None:
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise ValueError("native arrays must be contiguous")
    return array.ctypes.data


def _close(library: ctypes.CDLL, handle: ctypes.c_void_p, owner: int) -> None:
    if owner == os.getpid():  # a forked process has no such threads and would wait forever
        library.scanline_close(handle)


class DecoderHandle:
    """A decoder in native code: ``Decoder`` in decoder.h.

    Calls release the GIL. A forked process does not have the decoder's threads, so there ``begin``,
    ``step`` and ``copy`` raise ``RuntimeError``.

    Args:
        library: From ``load_library``.
        sizes: ``Config``'s fields.
        weights: float32 tensors by the names of ``Weights``; copied.
        layers: float32 tensors of each layer by the names of ``LayerWeights``; copied.
        arrays: The decoder's arrays by the names of ``Arrays``; used in place.

    Raises:
        NativeBuildError: Memory or threads are short.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        sizes: Mapping[str, int],
        weights: Mapping[str, NDArray[np.float32] | None],
        layers: Sequence[Mapping[str, NDArray[np.float32]]],
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self._library = library
        self.isa: str = isa_of(library)
        self._arrays = dict(arrays)  # keeps the arrays alive
        packed = (LayerWeights * len(layers))(
            *(LayerWeights(**{name: _address(t) for name, t in layer.items()}) for layer in layers)
        )
        tensors = Weights(
            **{name: _address(t) for name, t in weights.items()}, layers=ctypes.addressof(packed)
        )
        config = Config(**sizes)
        addresses = Arrays(**{name: _address(array) for name, array in arrays.items()})
        reason = ctypes.create_string_buffer(200)
        handle = library.scanline_open(config, tensors, addresses, reason, len(reason))
        if not handle:
            raise NativeBuildError(f"the native decoder cannot start: {reason.value.decode()}")
        self._handle, self._owner = ctypes.c_void_p(handle), os.getpid()
        self.close = weakref.finalize(self, _close, library, self._handle, self._owner)
        self.close.atexit = False  # another thread may still be in a step
        count, floats = sizes["max_slots"], slot_state(library, sizes)
        memory = (ctypes.c_float * (count * floats)).from_address(
            library.scanline_states(self._handle)
        )
        # View for tests of the slots' states ``[N, floats]``, valid as long as this object.
        self.states: NDArray[np.float32] = np.ctypeslib.as_array(memory).reshape(count, floats)
        self._trace: NDArray[np.float32] | None = None

    def _check_owner(self) -> None:
        """Raise ``RuntimeError`` in a forked process."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "this decoder was opened in another process, whose threads a fork does not have: "
                "open a new one here"
            )

    def _check(self, status: int) -> None:
        if status == _BAD_SLOTS:
            raise ValueError("slots must be -1 or different numbers below max_slots")
        if status:
            raise ValueError("lengths must be from 0 to an image's number of pixels")

    def step(self, slots: NDArray[np.int32], n: int) -> None:
        """Decide up to ``n`` more pixels of each slot."""
        self._check_owner()
        self._check(self._library.scanline_step(self._handle, slots.ctypes.data, slots.size, n))

    def copy(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy states from ``sources`` to ``targets``. No target may be a source."""
        self._check_owner()
        self._library.scanline_copy(
            self._handle, sources.ctypes.data, targets.ctypes.data, sources.size
        )

    def begin(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Reset slots, none of them -1, and prefill their first ``lengths`` pixels."""
        self._check_owner()
        self._check(
            self._library.scanline_begin(
                self._handle, slots.ctypes.data, lengths.ctypes.data, slots.size
            )
        )

    @property
    def pass_counts(self) -> PassCounts:
        """Totals of all passes through the network so far."""
        counts = (ctypes.c_int64 * 3)()
        self._library.scanline_pass_counts(self._handle, counts)
        return PassCounts(*counts)

    def partition(self, count: int) -> tuple[int, int]:
        """Return the number of teams, and of their threads in total, that step ``count`` slots."""
        result = (ctypes.c_int * 2)()
        self._library.scanline_partition(self._handle, count, result)
        return result[0], result[1]

    def trace(self, parameters: NDArray[np.float32]) -> None:
        """From now on also write each row's head parameters to ``[N, steps, head_outputs]``."""
        self._trace = parameters
        self._library.scanline_trace(self._handle, _address(parameters))
