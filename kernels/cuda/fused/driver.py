"""CUDA C++ on a device: compiled by NVRTC, which PyTorch brings along, and started by the driver.

No toolkit has to be installed. Only what the kernel here needs is there: blocks in clusters, and
one structure of arguments, on torch's current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scanline.kernels.cache import CacheFolderError, atomic_path, cache_folder

log = logging.getLogger("scanline.decoder")

_MAX_SHARED, _CARVEOUT, _ANY_CLUSTER = 8, 9, 14  # CU_FUNC_ATTRIBUTE_…
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_…
_DIGEST = hashlib.sha256().digest_size  # bytes before the code that is kept
_PORTABLE = 8  # blocks that a cluster may have everywhere


class CompileError(RuntimeError):
    """NVRTC is not there or does not compile; the message says what it said."""


class DriverError(RuntimeError):
    """The driver refused; the message says what it said."""


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16),
    )  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )  # fmt: skip


def literal(value: float) -> str:
    """Write a number as C++ has it."""
    return f"({value!r}f)" if isinstance(value, float) else str(int(value))


def _nvrtc() -> ctypes.CDLL:
    """Load the compiler that goes with torch's CUDA, or the newest for a torch without.

    Raises ``CompileError`` where there is none.
    """
    version = torch.version.cuda
    majors = ("13", "12") if version is None else (version.split(".")[0],)
    packages = Path(torch.__file__).parents[1] / "nvidia"
    for major in majors:
        name = f"libnvrtc.so.{major}"
        for folder in (packages / f"cu{major}" / "lib", packages / "cuda_nvrtc" / "lib"):
            with contextlib.suppress(OSError):
                for part in folder.glob("libnvrtc-builtins.so.*"):  # which it opens by its name
                    ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(str(folder / name))
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise CompileError(
        f"libnvrtc.so.{majors[0]} is not found: PyTorch brings it where it is built for CUDA, or "
        "else pip install nvidia-cuda-nvrtc"
    )


def compile_cached(
    source: str, name: str, defines: Mapping[str, int | float], capability: tuple[int, int]
) -> bytes:
    """Give what ``compile_source`` does, from the cache where that was done before.

    A cache that cannot be used is told in the log.
    """
    nvrtc, version = _nvrtc(), (ctypes.c_int * 2)()
    nvrtc.nvrtcVersion(ctypes.byref(version), ctypes.byref(version, ctypes.sizeof(ctypes.c_int)))
    parts = source, *_options(defines, capability), *map(str, version)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    try:
        path = cache_folder() / f"{Path(name).stem}-{key}.cubin"
        kept = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(kept[_DIGEST:]).digest() == kept[:_DIGEST]:  # and whole
            return kept[_DIGEST:]
    except (CacheFolderError, OSError) as error:
        _tell_not_kept(str(error))
        return compile_source(source, name, defines, capability)
    binary = compile_source(source, name, defines, capability)
    try:
        with atomic_path(path) as made:
            made.write_bytes(hashlib.sha256(binary).digest() + binary)
    except OSError as error:
        _tell_not_kept(str(error))
    return binary


@functools.cache  # of each reason once, whichever kernels are compiled
def _tell_not_kept(reason: str) -> None:
    log.warning(
        "cannot keep the device's code (%s); set SCANLINE_CACHE to a writable folder to compile "
        "once instead of at every start", reason,
    )  # fmt: skip


def compile_source(
    source: str, name: str, defines: Mapping[str, int | float], capability: tuple[int, int]
) -> bytes:
    """Give machine code for devices of a compute capability; raises ``CompileError``."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    options = _options(defines, capability)
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), 0, None, None
    )
    if code:
        raise CompileError(f"NVRTC cannot begin: error {code}")
    try:
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), words):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            said = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, said)
            raise CompileError(f"{name} does not compile: {said.value.decode(errors='replace')}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _options(defines: Mapping[str, int | float], capability: tuple[int, int]) -> list[str]:
    return [
        "--gpu-architecture=sm_{}{}".format(*capability), "--std=c++17", "--fmad=false",
        "--device-as-default-execution-space",  # lambdas that are templates
        *(f"-D{key}={literal(value)}" for key, value in defines.items()),
    ]  # fmt: skip


@functools.cache
def load_kernel(
    binary: bytes, name: str, device: int, *, threads: int, shared: int, cluster: int
) -> Kernel:
    """Give a ``Kernel`` on the current device, of that number: loaded once and for good."""
    return Kernel(binary, name, threads=threads, shared=shared, cluster=cluster)


class Kernel:
    """A compiled kernel on the current device, with how it is started.

    ``threads`` are a block's, ``shared`` its bytes of shared memory, ``cluster`` how many blocks
    are a cluster. Raises ``DriverError`` where the device cannot run it.
    """

    def __init__(
        self, binary: bytes, name: str, *, threads: int, shared: int, cluster: int
    ) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._threads, self._shared, self._cluster = threads, shared, cluster
        torch.cuda.current_stream().synchronize()  # the device's context is this thread's from here
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(self._module), binary)
        self._do("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._do("cuFuncSetAttribute", self._function, _MAX_SHARED, shared)
        if cluster == 1:
            self._do("cuFuncSetAttribute", self._function, _CARVEOUT, 100)
        if cluster > _PORTABLE:
            self._do("cuFuncSetAttribute", self._function, _ANY_CLUSTER, 1)

    def _do(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            said = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(said))
            raise DriverError(f"{name}: {(said.value or b'').decode()} ({code})")

    def _config(self, blocks: int) -> _Config:
        attributes = (_Attribute * 1)()  # which the structure keeps alive
        attributes[0].id = _CLUSTER
        attributes[0].value[:3] = (self._cluster, 1, 1)
        return _Config(
            (blocks, 1, 1), (self._threads, 1, 1), self._shared,
            torch.cuda.current_stream().cuda_stream, attributes, self._cluster > 1,
        )  # fmt: skip

    def max_active_clusters(self) -> int:
        """Give how many clusters the device runs at the same time."""
        found = ctypes.c_int()
        if self._cluster == 1:
            self._do(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), self._function,
                self._threads, ctypes.c_size_t(self._shared),
            )  # fmt: skip
            device = torch.cuda.get_device_properties(torch.cuda.current_device())
            return found.value * int(device.multi_processor_count)
        self._do(
            "cuOccupancyMaxActiveClusters", ctypes.byref(found), self._function,
            ctypes.byref(self._config(self._cluster)),
        )  # fmt: skip
        return found.value

    def start(self, clusters: int, arguments: ctypes.Structure) -> None:
        """Start so many clusters with these arguments, the kernel's only parameter."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        config = self._config(clusters * self._cluster)
        self._do("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)
