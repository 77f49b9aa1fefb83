"""Forward and backward pass of a batch, eagerly or as one CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scanline.model.network import LinearTransformer

log = logging.getLogger("scanline.training")

Pass = Callable[[Tensor, Tensor | None], Tensor]
_WARMUP_PASSES = 2  # before the capture; they compile kernels and allocate library workspaces


class ForwardBackward:
    """Forward and backward pass that leaves gradients with the parameters.

    Calling it with ``canvas: uint8 [B, T, C]`` and ``labels: int64 [B]`` or None returns the
    batch's bits/dim as a scalar on the device. Gradients must be cleared before the call.

    On a CUDA device the first call captures all kernels in a graph, and later calls replay it: the
    host takes longer to launch thousands of kernels than the device to run them. All batches must
    then have the shape of the first.

    Args:
        network: The network to train.
        bf16: Compute in bfloat16 autocast.
    """

    def __init__(self, network: LinearTransformer, *, bf16: bool) -> None:
        self._network, self._bf16 = network, bf16
        self._use_graph = network.norm.weight.is_cuda
        self._graph: _CapturedGraph | None = None

    def __call__(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        if self._use_graph and self._graph is None:
            self._capture(canvas, labels)
        if self._graph is None:
            return self._run(canvas, labels)
        return self._graph.run(canvas, labels)

    def _capture(self, canvas: Tensor, labels: Tensor | None) -> None:
        """Warm up and capture the graph; stay in eager mode if it cannot be captured."""
        canvas, labels = canvas.clone(), None if labels is None else labels.clone()
        network, device = self._network, canvas.device
        # Warm up on the stream of the capture: torch would otherwise synchronize streams inside it.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        # The random numbers of LSH attention in a step must not depend on whether it is the first.
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            with torch.cuda.stream(stream):
                for _ in range(_WARMUP_PASSES):
                    self._run(canvas, labels)
                    network.zero_grad()
            stream.synchronize()
            try:
                self._graph = _capture_graph(self._run, network, stream, canvas, labels)
            except RuntimeError as error:
                self._use_graph = False
                network.zero_grad()
                log.warning(
                    "the CUDA graph could not be captured: training continues without it, slower, "
                    "and the memory it allocated is lost: %s",
                    error,
                )

    def _run(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        network = self._network
        with torch.autocast(canvas.device.type, torch.bfloat16, enabled=self._bf16):
            parameters = network(canvas, labels)
        loss = network.bits_from(parameters, canvas).sum(1).mean() / network.config.dims
        loss.backward()
        return loss.detach()


@dataclass(frozen=True)
class _CapturedGraph:
    """A CUDA graph with its static inputs and outputs: bits/dim and one gradient per parameter."""

    graph: torch.cuda.CUDAGraph
    canvas: Tensor
    labels: Tensor | None
    bits: Tensor
    gradients: Sequence[tuple[Tensor, Tensor | None]]

    def run(self, canvas: Tensor, labels: Tensor | None) -> Tensor:
        if canvas.shape != self.canvas.shape or (labels is None) != (self.labels is None):
            raise ValueError(
                f"the CUDA graph was captured for images {[*self.canvas.shape]} "
                f"{'without' if self.labels is None else 'with'} labels; got images "
                f"{[*canvas.shape]} {'without' if labels is None else 'with'} labels"
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
    # The outer context restores the current stream if the capture fails. `thread_local` allows
    # other threads to use the device meanwhile.
    with (
        torch.cuda.stream(torch.cuda.current_stream(canvas.device)),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        bits = run(canvas, labels)
    gradients = [(parameter, parameter.grad) for parameter in network.parameters()]
    return _CapturedGraph(graph, canvas, labels, bits, gradients)
