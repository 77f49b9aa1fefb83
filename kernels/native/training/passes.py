"""Whole-batch passes of training on a CPU, in C++: torch operators that compile and differentiate.

Each does in one pass over memory what torch does in many, and gives the same numbers but for
rounding; ``None`` from ``passes`` says that this machine cannot build them. Sums are float32,
whatever the tensors' dtype, and do not depend on the number of threads or on other images.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.native.build import TRAINING, NativeBuildError, load_build

log = logging.getLogger("scanline.native")


class _AttentionSizes(ctypes.Structure):
    """As in attention.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ["images", "positions", "heads", "head_size"]],
        *[(name, ctypes.c_int64) for name in ["q_stride", "k_stride", "v_stride"]],
        ("epsilon", ctypes.c_float),
    ]


class _ConvSizes(ctypes.Structure):
    """As in short_conv.h."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ["images", "rows", "columns", "features", "stride"]
    ]


class Passes:
    """The native passes, run on a number of threads of their own; ``isa`` as in ``load_build``."""

    def __init__(self, threads: int, isa: str | None = None) -> None:
        library = load_build(isa, TRAINING)
        pointer = ctypes.c_void_p
        library.training_open.restype = pointer
        library.training_close.argtypes = [pointer]
        library.training_close.restype = None
        library.mixture_nats.argtypes = [
            pointer, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, *[pointer] * 4,
        ]  # fmt: skip
        library.mixture_nats.restype = None
        library.attention_forward.argtypes = [pointer, pointer, ctypes.c_int, *[pointer] * 7]
        library.attention_backward.argtypes = [pointer, pointer, ctypes.c_int, *[pointer] * 12]
        for name in ("short_conv_forward", "short_conv_backward"):
            function = getattr(library, name)
            function.restype = None
            function.argtypes = [pointer] * (5 if name == "short_conv_forward" else 7)
        self.library = library
        self.lanes = int(library.training_lanes())
        self.pool = library.training_open(threads)
        if not self.pool:
            raise NativeBuildError(f"{threads} threads for training cannot be had here")
        weakref.finalize(self, library.training_close, self.pool)


@functools.cache
def _passes(threads: int) -> Passes | None:
    try:
        return Passes(threads)
    except NativeBuildError as error:
        log.warning("training and scoring go on without their native passes, slower: %s", error)
        return None


_OFF = ContextVar("_OFF", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Do without the passes inside the block, to compare."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def passes() -> Passes | None:
    """Give the passes for as many threads as torch has, or None where they cannot be built."""
    return None if _OFF.get() else _passes(torch.get_num_threads())


def _ready() -> Passes:
    ready: Passes | None = passes()
    if ready is None:
        raise NativeBuildError("the native passes cannot be built here")
    return ready


def _rows(x: Tensor) -> Tensor:
    """Give ``[B, T, H, K]`` with whole heads side by side and positions evenly apart."""
    B, T, _, K = x.shape
    even = x.stride(3) == 1 and x.stride(2) == K and (B == 1 or x.stride(0) == T * x.stride(1))
    return x if even else x.contiguous()


def attends(q: Tensor, v: Tensor) -> bool:
    """Whether ``attention`` takes these tensors, ``[B, T, H, K]`` on a CPU."""
    if q.device.type != "cpu" or v.shape != q.shape or q.shape[1] == 0:
        return False
    if q.dtype != v.dtype or q.dtype not in (torch.float32, torch.bfloat16):
        return False
    ready = passes()
    return ready is not None and q.shape[3] in [ready.lanes * n for n in (1, 2, 4, 8)]


def _sizes(q: Tensor, k: Tensor, v: Tensor, eps: float) -> _AttentionSizes:
    return _AttentionSizes(*q.shape, q.stride(1), k.stride(1), v.stride(1), eps)


@torch.library.custom_op("scanline::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend causally with φ = elu + 1 (eq. 7, 9-12), one position after the other.

    ``q, k, v: [B, T, H, K]`` float32 or bfloat16, before the feature map; ``kv: [B, H, K, K]`` and
    ``z: [B, H, K]`` float32, the state before. Returns ``o`` like ``v``, the state after, and the
    denominators, float32 ``[B, T, H]``.
    """
    ready = _ready()
    q, k, v = _rows(q), _rows(k), _rows(v)
    kv, z = kv.contiguous().clone(), z.contiguous().clone()
    o = torch.empty(v.shape, dtype=v.dtype)
    denominators = torch.empty(v.shape[:3])
    ready.library.attention_forward(
        ready.pool, ctypes.byref(_sizes(q, k, v, eps)), q.dtype == torch.bfloat16,
        q.data_ptr(), k.data_ptr(), v.data_ptr(), kv.data_ptr(), z.data_ptr(), o.data_ptr(),
        denominators.data_ptr(),
    )  # fmt: skip
    return o, kv, z, denominators


@torch.library.custom_op("scanline::attention_backward", mutates_args=())
def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float, denominators: Tensor,
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    ready = _ready()
    q, k, v, grad_o = _rows(q), _rows(k), _rows(v), grad_o.contiguous()
    kv, z = kv.contiguous(), z.contiguous()
    grad_kv, grad_z = grad_kv.contiguous().clone(), grad_z.contiguous().clone()
    grad_q, grad_k, grad_v = (torch.empty(q.shape, dtype=q.dtype) for _ in range(3))
    failed = ready.library.attention_backward(
        ready.pool, ctypes.byref(_sizes(q, k, v, eps)), q.dtype == torch.bfloat16,
        q.data_ptr(), k.data_ptr(), v.data_ptr(), denominators.data_ptr(), grad_o.data_ptr(),
        kv.data_ptr(), z.data_ptr(), grad_kv.data_ptr(), grad_z.data_ptr(),
        grad_q.data_ptr(), grad_k.data_ptr(), grad_v.data_ptr(),
    )  # fmt: skip
    if failed:
        raise MemoryError("there is no memory left for the attention's gradient")
    return grad_q, grad_k, grad_v, grad_kv, grad_z


@torch.library.custom_op("scanline::short_conv", mutates_args=())
def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve float32 ``x: [B, R, C, D]`` with ``weight: [5, D]``, D in whole vectors."""
    ready = _ready()
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    ready.library.short_conv_forward(
        ready.pool, ctypes.byref(_ConvSizes(*x.shape, stride)),
        x.data_ptr(), weight.data_ptr(), y.data_ptr(),
    )  # fmt: skip
    return y


@torch.library.custom_op("scanline::short_conv_backward", mutates_args=())
def _conv_backward(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    ready = _ready()
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    grad_x = torch.empty_like(x)
    of_images = torch.zeros(len(x), *weight.shape)
    ready.library.short_conv_backward(
        ready.pool, ctypes.byref(_ConvSizes(*x.shape, stride)), grad.data_ptr(), x.data_ptr(),
        weight.data_ptr(), grad_x.data_ptr(), of_images.data_ptr(),
    )  # fmt: skip
    return grad_x, of_images.sum(0)


def convolves(x: Tensor) -> bool:
    """Whether ``conv`` takes this tensor, ``[B, R, C, D]``."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    ready = passes()
    return ready is not None and x.shape[3] % ready.lanes == 0


@torch.library.custom_op("scanline::mixture_nats", mutates_args=())
def mixture_nats(parameters: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Give -ln P of the values under mixtures of ten logistics, and its gradient.

    ``parameters: [P, size]`` float32, ``values: [P, C]`` uint8. Returns nats ``[P]`` and their
    derivatives by the parameters, ``[P, size]``.
    """
    ready = _ready()
    parameters, values = parameters.contiguous(), values.contiguous()
    nats, gradient = torch.empty(len(parameters)), torch.empty_like(parameters)
    ready.library.mixture_nats(
        ready.pool, len(parameters), values.shape[1], parameters.shape[1],
        parameters.data_ptr(), values.data_ptr(), nats.data_ptr(), gradient.data_ptr(),
    )  # fmt: skip
    return nats, gradient


def weighs(parameters: Tensor) -> bool:
    """Whether ``mixture_nats`` takes these parameters."""
    cpu = parameters.device.type == "cpu" and parameters.dtype == torch.float32
    return cpu and passes() is not None


# What torch.compile needs to know of each, and the way back.


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float) -> Any:
    o = v.new_empty(v.shape)
    return o, torch.empty_like(kv), torch.empty_like(z), v.new_empty(v.shape[:3]).float()


@_attention_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, *rest: Any) -> Any:
    return (*(x.new_empty(x.shape) for x in (q, k, v)), torch.empty_like(kv), torch.empty_like(z))


@conv.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Any:
    return torch.empty_like(x)


@_conv_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Any:
    return torch.empty_like(x), torch.empty_like(weight)


@mixture_nats.register_fake
def _(parameters: Tensor, values: Tensor) -> Any:
    return parameters.new_empty(len(parameters)), torch.empty_like(parameters)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, kv, z, ctx.eps = inputs
    ctx.save_for_backward(q, k, v, kv, z, output[3])


def _attention_grad(ctx: Any, o: Tensor, kv: Tensor, z: Tensor, _denominators: Tensor) -> Any:
    *inputs, denominators = ctx.saved_tensors
    return (*_attention_backward(*inputs, ctx.eps, denominators, o, kv, z), None)


attention.register_autograd(_attention_grad, setup_context=_keep_attention)


def _keep_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _conv_grad(ctx: Any, grad: Tensor) -> Any:
    return (*_conv_backward(grad, *ctx.saved_tensors, ctx.stride), None)


conv.register_autograd(_conv_grad, setup_context=_keep_conv)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _mixture_grad(ctx: Any, grad: Tensor, _gradient: Tensor) -> Any:
    (gradient,) = ctx.saved_tensors
    return gradient * grad.unsqueeze(1), None


mixture_nats.register_autograd(_mixture_grad, setup_context=_keep_gradient)
