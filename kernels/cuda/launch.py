"""Kernel launches with their arguments, run from the host or replayed as CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.cuda.variants import KernelVariant

TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip
GRAPH_PIXELS = (8, 1)  # pixels per replay of a graph


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments and options; ``run`` launches it for a number of rows.

    Attributes:
        arguments: Tensors, None, or the name of the number that ``run`` gets: ``"subpixel"`` for
            the index of a step within its pixel, ``"steps"`` for the steps per image of a prefill.
        rows: Rows per program.
        programs_per_row: Programs per tile of rows, on the first axis of the grid.
        columns: Programs on the second axis of the grid.
    """

    name: str
    kernel: Any  # triton's JITFunction, which has no type stubs
    arguments: Mapping[str, Tensor | str | None]
    constants: Mapping[str, object]
    rows: int = 1
    programs_per_row: int = 1
    columns: int = 1
    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None

    def run(self, rows: int, number: int) -> None:
        arguments = {n: number if isinstance(x, str) else x for n, x in self.arguments.items()}
        grid = (triton.cdiv(rows, self.rows) * self.programs_per_row, self.columns)
        dependent = {"launch_pdl": True} if self.constants["OVERLAP"] else {}
        self.kernel[grid](
            **arguments, **self.constants, **dependent,
            num_warps=self.num_warps, num_stages=self.num_stages, maxnreg=self.maxnreg,
        )  # fmt: skip

    def variant(self, prefix: str) -> KernelVariant:
        """Return the kernel variant that this launch makes Triton compile."""
        signature: dict[str, str] = {}
        constants = dict(self.constants)
        for name, value in self.arguments.items():
            if value is None:
                constants[name] = None
            elif isinstance(value, str):
                signature[name] = "i32"
            else:
                aligned = value.storage_offset() * value.element_size() % 16 == 0
                signature[name] = f"*{TYPES[value.dtype]}" + ":16" * aligned
        name = f"{self.kernel.__name__}/{prefix}/{self.name}"
        options = (self.num_warps, self.num_stages, self.maxnreg)
        return KernelVariant(name, self.kernel, signature, constants, *options)


class StepRunner:
    """Runner of a step's launches for the first rows of a batch, pixel after pixel.

    Args:
        launches: The launches of a step, by the smallest number of rows that they are for.
        steps_per_pixel: Steps per pixel.
        max_rows: Maximum number of rows.
    """

    def __init__(
        self, launches: Mapping[int, Sequence[Launch]], steps_per_pixel: int, max_rows: int
    ) -> None:
        self._launches, self._steps_per_pixel = launches, steps_per_pixel
        self._max_rows = max_rows
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def run(self, rows: int, pixels: int) -> None:
        """Launch ``pixels`` pixels of the first ``rows`` rows, with as few graphs as possible."""
        for size in GRAPH_PIXELS:
            for _ in range(pixels // size):
                graph = self._graphs.get((self._bucket(rows), size))
                if graph is None:
                    self._launch(rows, size)
                else:
                    graph.replay()
            pixels %= size

    def compile(self) -> None:
        """Launch every kernel once without slots, so that no capture has to compile."""
        for rows in self._launches:
            self._launch(rows, 1)

    def capture(self) -> None:
        """Capture all graphs, one for each power of two of rows, on the current stream.

        Call ``compile`` first. The batch must have no slots.
        """
        for rows in sorted({self._bucket(1 << i) for i in range(32)}):
            for pixels in GRAPH_PIXELS:
                graph = torch.cuda.CUDAGraph()
                # Threads of other engines may use the device during the capture.
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._launch(rows, pixels)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # would hide the cause
                        graph.capture_end()
                    raise
                graph.capture_end()
                graph.replay()  # without slots: the first replay is slow
                self._graphs[rows, pixels] = graph

    def _bucket(self, rows: int) -> int:
        return min(int(triton.next_power_of_2(rows)), self._max_rows)

    def _launch(self, rows: int, pixels: int) -> None:
        launches = self._launches[max(smallest for smallest in self._launches if smallest <= rows)]
        for _ in range(pixels):
            for subpixel in range(self._steps_per_pixel):
                for launch in launches:
                    launch.run(rows, subpixel)
