"""A batch's way forward and back: as torch runs it, or as one CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scanline.model.network import LinearTransformer

log = logging.getLogger("scanline.training")

Pass = Callable[[Tensor, Tensor | None], Tensor]
_REHEARSALS = 2  # in which kernels are compiled and libraries take their memory


class ForwardBackward:
    """Run a network forward and back: ``canvas: uint8 [B, T, C]``, ``labels: int64 [B]`` or None.

    Gives the batch's bits/dim, a number on the device, and leaves gradients with the parameters,
    which it expects without. On a CUDA device all kernels are recorded at the first batch, and
    started by one call from then on: there are thousands, and the host takes longer to start them
    than the device to run them. Batches must then be of one shape.
    """

    def __init__(self, network: LinearTransformer, *, bf16: bool, compiled: bool = False) -> None:
        self._network, self._bf16 = network, bf16
        self._forward: Callable[..., Tensor] = torch.compile(network) if compiled else network
        self._records = network.norm.weight.is_cuda and not compiled
        self._recording: _CapturedGraph | None = None

    def __call__(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        if self._records and self._recording is None:
            self._record(canvas, labels)
        if self._recording is None:
            return self._run(canvas, labels)
        return self._recording.run(canvas, labels)

    def _record(self, canvas: Tensor, labels: Tensor | None) -> None:
        """Rehearse, and record where that can be done."""
        canvas, labels = canvas.clone(), None if labels is None else labels.clone()
        network, device = self._network, canvas.device
        # Rehearsed where it is recorded: torch would wait for another stream in the midst of it.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_REHEARSALS):
                self._run(canvas, labels)
                network.zero_grad()
        stream.synchronize()
        try:
            self._recording = _capture_graph(self._run, network, stream, canvas, labels)
        except RuntimeError as error:
            self._records = False
            network.zero_grad()
            log.warning(
                "training goes on, slower, without a CUDA graph, which cannot be made, and without "
                "the memory that it began to take: %s",
                error,
            )

    def _run(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        network = self._network
        with torch.autocast(canvas.device.type, torch.bfloat16, enabled=self._bf16):
            parameters = self._forward(canvas, labels)
        loss = network.bits_from(parameters, canvas).sum(1).mean() / network.config.dims
        loss.backward()
        return loss.detach()


@dataclass(frozen=True)
class _CapturedGraph:
    """A graph, what it reads, and where it leaves the bits and each parameter's gradient."""

    graph: torch.cuda.CUDAGraph
    canvas: Tensor
    labels: Tensor | None
    bits: Tensor
    gradients: Sequence[tuple[Tensor, Tensor | None]]

    def run(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        if canvas.shape != self.canvas.shape or (labels is None) != (self.labels is None):
            raise ValueError(
                f"a graph recorded of {[*self.canvas.shape]} cannot run a batch of another shape, "
                f"or one with labels where it had none: {[*canvas.shape]}"
            )
        self.canvas.copy_(canvas)
        if self.labels is not None and labels is not None:
            self.labels.copy_(labels)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.bits


def _capture_graph(
    run: Pass, network: LinearTransformer, stream: torch.cuda.Stream, canvas: Tensor,
    labels: Tensor | None,
) -> _CapturedGraph:  # fmt: skip
    graph = torch.cuda.CUDAGraph()
    # Whatever fails, torch is to go on where it was; and other threads may use the device.
    with (
        torch.cuda.stream(torch.cuda.current_stream(canvas.device)),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        bits = run(canvas, labels)
    gradients = [(parameter, parameter.grad) for parameter in network.parameters()]
    return _CapturedGraph(graph, canvas, labels, bits, gradients)
