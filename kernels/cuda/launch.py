"""Kernels with all that they are given, and pixels of them: from the host, or as CUDA graphs."""

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
GRAPH_PIXELS = (8, 1)  # pixels that one replay of a graph draws


@dataclass(frozen=True)
class Launch:
    """One kernel with all that it is given; ``run`` starts it for so many rows.

    ``arguments`` are tensors, None, or ``"part"``, which stands for the step's place in the pixel.
    ``rows`` rows and ``columns`` tiles (or heads, beside the rows) make the grid.
    """

    name: str
    kernel: Any  # triton's JITFunction, which has no type stubs
    arguments: Mapping[str, Tensor | str | None]
    constants: Mapping[str, object]
    rows: int = 1
    beside: int = 1
    columns: int = 1
    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None

    def run(self, rows: int, part: int) -> None:
        arguments = {n: part if isinstance(x, str) else x for n, x in self.arguments.items()}
        grid = (triton.cdiv(rows, self.rows) * self.beside, self.columns)
        early = {"launch_pdl": True} if self.constants["OVERLAP"] else {}
        self.kernel[grid](
            **arguments, **self.constants, **early,
            num_warps=self.num_warps, num_stages=self.num_stages, maxnreg=self.maxnreg,
        )  # fmt: skip

    def variant(self, prefix: str) -> KernelVariant:
        """Give what this launch makes Triton compile."""
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
    """A step's launches, run pixel after pixel for the first rows of a batch.

    ``parts`` is how many steps a pixel takes, ``most`` how many rows there ever are. The launches
    are those of the largest of their numbers of rows that is not more than there are.
    """

    def __init__(self, launches: Mapping[int, Sequence[Launch]], parts: int, most: int) -> None:
        self._launches, self._parts, self._most = launches, parts, most
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def run(self, rows: int, pixels: int) -> None:
        """Start so many pixels of the first rows, in as few graphs as do it."""
        for size in GRAPH_PIXELS:
            for _ in range(pixels // size):
                graph = self._graphs.get((self._bucket(rows), size))
                if graph is None:
                    self._launch(rows, size)
                else:
                    graph.replay()
            pixels %= size

    def compile(self) -> None:
        """Start every kernel once, of no slots: nothing is compiled while a graph is captured."""
        for rows in self._launches:
            self._launch(rows, 1)

    def capture(self) -> None:
        """Make every graph now, so that none is made while somebody waits.

        For rows up to each power of two, on the current stream. All kernels have to have run, and
        there are no slots in the batch.
        """
        for rows in sorted({self._bucket(1 << i) for i in range(32)}):
            for pixels in GRAPH_PIXELS:
                graph = torch.cuda.CUDAGraph()
                # Other engines' threads may go on using the device meanwhile.
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._launch(rows, pixels)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # which would hide the cause
                        graph.capture_end()
                    raise
                graph.capture_end()
                graph.replay()  # of no slots: what the first replay takes, nobody waits for
                self._graphs[rows, pixels] = graph

    def _bucket(self, rows: int) -> int:
        return min(int(triton.next_power_of_2(rows)), self._most)

    def _launch(self, rows: int, pixels: int) -> None:
        launches = self._launches[max(least for least in self._launches if least <= rows)]
        for _ in range(pixels):
            for part in range(self._parts):
                for launch in launches:
                    launch.run(rows, part)
