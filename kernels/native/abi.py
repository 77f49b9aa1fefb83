"""The native CPU decoder's C ABI as Python sees it; ctypes releases the GIL while it runs."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scanline.kernels.native.build import NativeBuildError, load_build

_BAD_SLOTS = 1
# What products are computed in, counted as ``Format`` in formats.h is.
Precision = Literal["float32", "bf16", "int16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SHORT = "this machine cannot be measured: memory or threads are short"


def _fields(names: str, kind: type[ctypes.c_int32 | ctypes.c_void_p]) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class _Named(ctypes.Structure):
    """Takes fields by name, and refuses a name that it has not: C would be told nothing of it."""

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - {name for name, *_ in self._fields_}:
            raise ValueError(
                f"{type(self).__name__} in weights.h has no {', '.join(sorted(unknown))}: the "
                "native code must be taught, or refuse, what is new"
            )
        super().__init__(**values)


class Config(_Named):
    """Sizes and options, as ``Config`` in weights.h."""

    _fields_ = _fields(
        "height width channels step_channels neighbourhood sinusoidal categorical pre_norm gelu "
        "start_given first_value classes short_conv n_layers n_heads d_model d_ff head_outputs "
        "step_draws max_slots precision threads team speculate",
        ctypes.c_int32,
    )


class LayerWeights(_Named):
    """A layer's tensors, as in weights.h."""

    _fields_ = _fields(
        "query_weight query_bias key_weight key_bias value_weight value_bias out_weight out_bias "
        "linear1_weight linear1_bias linear2_weight linear2_bias "
        "norm1_weight norm1_bias norm2_weight norm2_bias conv1_weight conv2_weight",
        ctypes.c_void_p,
    )


class Weights(_Named):
    """The network's tensors, null where it has none, as in weights.h."""

    _fields_ = [
        *_fields(
            "value_embedding start tables linear_weight linear_bias code row column channel label "
            "norm_weight norm_bias head_weight head_bias head_tables",
            ctypes.c_void_p,
        ),
        ("layers", ctypes.POINTER(LayerWeights)),
    ]


class Arrays(_Named):
    """The decoder's arrays, as in weights.h."""

    _fields_ = _fields(
        "canvas bits positions known seed particle temperature label top_p guidance twin",
        ctypes.c_void_p,
    )


def load_library(isa: str | None = None) -> ctypes.CDLL:
    """Load the native code for an ISA, the CPU's best by default, built if need be.

    Raises what ``load_build`` does.
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
        "head_padded": (integer, [handle]),
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
    """Count the floats of a slot's state in a network of these sizes, ``Config``'s fields."""
    count: int = library.scanline_slot_state(Config(**sizes))
    return count


def precision_of(name: str) -> Precision:
    """Give the precision of this name; raises ``ValueError`` where there is none."""
    for known in PRECISIONS:
        if known == name:
            return known
    raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {name!r}")


def isa_of(library: ctypes.CDLL) -> str:
    """Name the instructions that a library was built for."""
    name: bytes = library.scanline_isa()
    return name.decode()


class Peaks(NamedTuple):
    """The best that a machine does: operations, by precision, and bytes a second."""

    float32_operations: float
    bf16_operations: float
    int16_operations: float
    int8_operations: float
    cache_bytes: float
    memory_bytes: float


def measure_peaks(library: ctypes.CDLL, threads: int) -> Peaks:
    """Measure this machine with native code, which takes some seconds.

    Raises ``NativeBuildError`` where memory or threads are short.
    """
    peaks = (ctypes.c_double * 6)()
    library.scanline_measure(threads, peaks)
    if not all(peaks):
        raise NativeBuildError(SHORT)
    return Peaks(*peaks)


def measure_bandwidth(library: ctypes.CDLL, threads: int, size: int) -> float:
    """Measure bytes a second of reading ``size`` bytes over and over, in a quarter of a second.

    Raises ``NativeBuildError`` where memory or threads are short.
    """
    rate: float = library.scanline_bandwidth(threads, size)
    if not rate:
        raise NativeBuildError(SHORT)
    return rate


def _address(array: NDArray[np.generic] | None) -> int | None:
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise ValueError("native arrays must be contiguous")
    return array.ctypes.data


def _close(library: ctypes.CDLL, handle: ctypes.c_void_p, owner: int) -> None:
    if owner == os.getpid():  # a fork has none of the threads, and would wait for them
        library.scanline_close(handle)


class NativeNetwork:
    """One network with its slots, in native code; every call runs without the GIL.

    Its threads are this process's: in a fork of it every call raises ``RuntimeError``. ``sizes``
    are ``Config``'s fields; ``weights`` and ``layers`` float32 tensors by the names of ``Weights``
    and ``LayerWeights``, copied; ``arrays`` those of ``Arrays``, used in place.
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
        self._arrays = dict(arrays)  # keeps them alive
        packed = (LayerWeights * len(layers))(
            *(LayerWeights(**{name: _address(t) for name, t in layer.items()}) for layer in layers)
        )
        tensors = Weights(**{name: _address(t) for name, t in weights.items()}, layers=packed)
        config = Config(**sizes)
        addresses = Arrays(**{name: _address(array) for name, array in arrays.items()})
        reason = ctypes.create_string_buffer(200)
        handle = library.scanline_open(config, tensors, addresses, reason, len(reason))
        if not handle:
            raise NativeBuildError(f"the native decoder cannot start: {reason.value.decode()}")
        self._handle, self._owner = ctypes.c_void_p(handle), os.getpid()
        self.close = weakref.finalize(self, _close, library, self._handle, self._owner)
        self.close.atexit = False  # another thread may be in a step still
        count, heads = sizes["max_slots"], sizes["n_heads"]
        K = sizes["d_model"] // heads
        each = slot_state(library, sizes)
        memory = (ctypes.c_float * (count * each)).from_address(
            library.scanline_states(self._handle)
        )
        # Every slot's state ``[N, floats]``, and its sums, a view ``[N, L, H, K + 1, V padded]``:
        # kv, and z in the last row. For tests; valid as long as this object.
        self.states: NDArray[np.float32] = np.ctypeslib.as_array(memory).reshape(count, each)
        shape = (sizes["n_layers"], heads, K + 1, library.scanline_head_padded(self._handle))
        sums = self.states[:, : int(np.prod(shape))]
        self.sums: NDArray[np.float32] = sums.reshape(count, *shape)
        self._trace: NDArray[np.float32] | None = None

    def _check_owner(self) -> None:
        """Raise ``RuntimeError`` in a fork: it would wait for threads that it does not have."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "this decoder was opened in another process, whose threads a fork does not have: "
                "open one here"
            )

    def _check(self, status: int) -> None:
        if status == _BAD_SLOTS:
            raise ValueError("slots must be -1 or different numbers below max_slots")
        if status:
            raise ValueError("an image has no such number of pixels")

    def step(self, slots: NDArray[np.int32], n: int) -> None:
        """Advance each slot by up to ``n`` pixels."""
        self._check_owner()
        self._check(self._library.scanline_step(self._handle, slots.ctypes.data, slots.size, n))

    def copy(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy the state of slots to others, none of which is a source."""
        self._check_owner()
        self._library.scanline_copy(
            self._handle, sources.ctypes.data, targets.ctypes.data, sources.size
        )

    def begin(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Zero the state of slots, none of them -1, and prefill their first ``lengths`` pixels."""
        self._check_owner()
        self._check(
            self._library.scanline_begin(
                self._handle, slots.ctypes.data, lengths.ctypes.data, slots.size
            )
        )

    @property
    def pass_counts(self) -> tuple[int, int]:
        """Passes through the network so far, and the rows that they had."""
        counts = (ctypes.c_int64 * 2)()
        self._library.scanline_pass_counts(self._handle, counts)
        return counts[0], counts[1]

    def partition(self, count: int) -> tuple[int, int]:
        """Give how many teams would step so many slots, and of how many threads in all."""
        crews = (ctypes.c_int * 2)()
        self._library.scanline_partition(self._handle, count, crews)
        return crews[0], crews[1]

    def trace(self, parameters: NDArray[np.float32]) -> None:
        """From now on write each row's head parameters to ``[N, steps, head_outputs]`` too."""
        self._trace = parameters
        self._library.scanline_trace(self._handle, _address(parameters))
