"""Compiler and launcher of CUDA C++ kernels, through NVRTC and the CUDA driver.

PyTorch ships NVRTC, so the CUDA toolkit is not needed. Only the features that the fused kernel
needs are covered: clusters of blocks, and one argument structure, on torch's current stream.
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

from scanline.kernels.cache import atomic_path, cache_folder

log = logging.getLogger("scanline.decoder")

_MAX_SHARED, _CARVEOUT, _ANY_CLUSTER = 8, 9, 14  # CU_FUNC_ATTRIBUTE_…
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_…
_DIGEST = hashlib.sha256().digest_size  # a cache file is the digest of the code, then the code
_PORTABLE = 8  # maximum cluster size that every device supports


class CompileError(RuntimeError):
    """Error for missing NVRTC or a failed compilation, with NVRTC's message."""


class DriverError(RuntimeError):
    """Error of the CUDA driver, with its message."""


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
    """Return a number as a C++ literal."""
    return f"({value!r}f)" if isinstance(value, float) else str(int(value))


def _nvrtc() -> ctypes.CDLL:
    """Load the NVRTC of torch's CUDA version, or the newest one if torch has no CUDA.

    Raises:
        CompileError: NVRTC is not installed.
    """
    version = torch.version.cuda
    majors = ("13", "12") if version is None else (version.split(".")[0],)
    packages = Path(torch.__file__).parents[1] / "nvidia"
    for major in majors:
        name = f"libnvrtc.so.{major}"
        for folder in (packages / f"cu{major}" / "lib", packages / "cuda_nvrtc" / "lib"):
            with contextlib.suppress(OSError):
                for part in folder.glob("libnvrtc-builtins.so.*"):  # NVRTC opens it by name
                    ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(str(folder / name))
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise CompileError(
        f"libnvrtc.so.{majors[0]} not found: install a CUDA build of PyTorch, which includes it, "
        "or pip install nvidia-cuda-nvrtc"
    )


def compile_cached(
    source: str, name: str, defines: Mapping[str, int | float], capability: tuple[int, int]
) -> bytes:
    """Return the result of ``compile_source``, from the cache folder if it is there.

    Log a warning if the cache folder cannot be used.
    """
    nvrtc, version = _nvrtc(), (ctypes.c_int * 2)()
    nvrtc.nvrtcVersion(ctypes.byref(version), ctypes.byref(version, ctypes.sizeof(ctypes.c_int)))
    parts = source, *_options(defines, capability), *map(str, version)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    try:
        path = cache_folder() / f"{Path(name).stem}-{key}.cubin"
        cached = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(cached[_DIGEST:]).digest() == cached[:_DIGEST]:
            return cached[_DIGEST:]
    except OSError as error:
        _warn_not_cached(str(error))
        return compile_source(source, name, defines, capability)
    binary = compile_source(source, name, defines, capability)
    try:
        with atomic_path(path) as made:
            made.write_bytes(hashlib.sha256(binary).digest() + binary)
    except OSError as error:
        _warn_not_cached(str(error))
    return binary


@functools.cache  # one warning per reason
def _warn_not_cached(reason: str) -> None:
    log.warning(
        "cannot cache compiled CUDA code (%s); set SCANLINE_CACHE to a writable folder to compile "
        "once instead of at every start", reason,
    )  # fmt: skip


def compile_source(
    source: str, name: str, defines: Mapping[str, int | float], capability: tuple[int, int]
) -> bytes:
    """Compile CUDA C++ to machine code (a cubin) for a compute capability.

    Raises:
        CompileError: NVRTC is not installed, or the source does not compile.
    """
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    options = _options(defines, capability)
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), 0, None, None
    )
    if code:
        raise CompileError(f"NVRTC could not create a program: error {code}")
    try:
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), words):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log_text = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log_text)
            message = log_text.value.decode(errors="replace")
            raise CompileError(f"{name} does not compile: {message}")
        code = nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        code = code or nvrtc.nvrtcGetCUBIN(program, binary)
        if code or not size.value:
            raise CompileError(f"NVRTC returned no machine code for {name}: error {code}")
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _options(defines: Mapping[str, int | float], capability: tuple[int, int]) -> list[str]:
    return [
        "--gpu-architecture=sm_{}{}".format(*capability), "--std=c++17", "--fmad=false",
        "--device-as-default-execution-space",  # for generic lambdas
        *(f"-D{key}={literal(value)}" for key, value in defines.items()),
    ]  # fmt: skip


@functools.cache
def load_kernel(
    binary: bytes, name: str, device: int, *, threads: int, shared: int, cluster: int
) -> Kernel:
    """Load a kernel on the current device, whose index is ``device``; cached for the process."""
    return Kernel(binary, name, threads=threads, shared=shared, cluster=cluster)


class Kernel:
    """A compiled kernel, loaded on the current device.

    Args:
        binary: The machine code.
        name: Name of the kernel's function.
        threads: Threads per block.
        shared: Bytes of shared memory per block.
        cluster: Blocks per cluster.

    Raises:
        DriverError: The device cannot run the kernel.
    """

    def __init__(
        self, binary: bytes, name: str, *, threads: int, shared: int, cluster: int
    ) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._threads, self._shared, self._cluster = threads, shared, cluster
        torch.cuda.current_stream().synchronize()  # makes the device's context current
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), binary)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._call("cuFuncSetAttribute", self._function, _MAX_SHARED, shared)
        if cluster == 1:
            self._call("cuFuncSetAttribute", self._function, _CARVEOUT, 100)
        if cluster > _PORTABLE:
            self._call("cuFuncSetAttribute", self._function, _ANY_CLUSTER, 1)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            message = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(message))
            raise DriverError(f"{name}: {(message.value or b'').decode()} ({code})")

    def _config(self, blocks: int) -> _Config:
        attributes = (_Attribute * 1)()  # kept alive by the structure
        attributes[0].id = _CLUSTER
        attributes[0].value[:3] = (self._cluster, 1, 1)
        return _Config(
            (blocks, 1, 1), (self._threads, 1, 1), self._shared,
            torch.cuda.current_stream().cuda_stream, attributes, self._cluster > 1,
        )  # fmt: skip

    def max_active_clusters(self) -> int:
        """Return the number of clusters that the device can run at the same time."""
        found = ctypes.c_int()
        if self._cluster == 1:
            self._call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), self._function,
                self._threads, ctypes.c_size_t(self._shared),
            )  # fmt: skip
            device = torch.cuda.get_device_properties(torch.cuda.current_device())
            return found.value * int(device.multi_processor_count)
        self._call(
            "cuOccupancyMaxActiveClusters", ctypes.byref(found), self._function,
            ctypes.byref(self._config(self._cluster)),
        )  # fmt: skip
        return found.value

    def launch(self, clusters: int, arguments: ctypes.Structure) -> None:
        """Launch ``clusters`` clusters; ``arguments`` is the kernel's only parameter."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        config = self._config(clusters * self._cluster)
        self._call("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)
