"""Tests of the decode plan, its compile variants and the step runner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_config import COMPILED, state_bytes
from scanline.kernels.cuda.decode_plan import BN_MANY, plan, variants
from scanline.kernels.cuda.launch import StepRunner
from scanline.kernels.cuda.matmul import project_kernel
from scanline.model.config import PRESETS
from scanline.model.decoders.packing import decode_config_for


def test_presets_are_compiled() -> None:
    for name, config in PRESETS.items():
        compiled = decode_config_for(config)
        assert compiled in COMPILED.values(), f"add the network of {name} to COMPILED: {compiled}"


def test_variants_cover_all_launches() -> None:
    """Variants are unique and have all arguments of their kernels."""
    found = variants(overlap=True)
    names = [variant.name for variant in found]
    assert len(set(names)) == len(names)
    for variant in found:
        given = variant.signature.keys() | variant.constants.keys()
        assert given == set(variant.kernel.arg_names), variant.name
    sizes = COMPILED["mnist-paper"]
    memory = allocate_weights(sizes, "meta"), allocate_buffers(sizes, 64, "meta")
    few, many = (plan(sizes, *memory, overlap=True, many=many) for many in (False, True))
    assert len(few) == len(many) == 5 * 8 + 4
    compiled = [(v.kernel, v.signature, v.constants) for v in found]
    for launch in (*few, *many):
        variant = launch.variant("")
        assert (variant.kernel, variant.signature, variant.constants) in compiled


def test_plans_for_few_and_many_rows_differ_in_tile_columns_only() -> None:
    """The order of sums and the tiles of the statistics must be the same."""
    for name, sizes in COMPILED.items():
        memory = allocate_weights(sizes, "meta"), allocate_buffers(sizes, 64, "meta")
        few, many = (plan(sizes, *memory, many=many) for many in (False, True))
        differ = {
            key
            for one, other in zip(few, many, strict=True)
            for key in one.constants
            if one.constants[key] != other.constants[key]
        }
        assert differ == ({"BN"} if sizes.d_model >= BN_MANY else set()), name
        pairs = zip(few, many, strict=True)
        kernels = {one.kernel for one, other in pairs if one.constants != other.constants}
        assert kernels <= {project_kernel}, name


def test_state_bytes() -> None:
    """For one head with K = 32: 33 × 32 floats are read and written per step."""
    one = replace(COMPILED["mnist-paper"], layers=1, heads=1, d_model=32)
    assert state_bytes(replace(one, write_interval=1)) == 4 * 2 * 33 * 32
    # Written in the fourth step. The others append one entry of 2 × 32 bf16 numbers, and the steps
    # read 0, 1, 2 and 3 entries.
    four = 4 * 5 * 33 * 32 + 2 * (3 + 6) * 64
    assert state_bytes(replace(one, write_interval=4)) == four / 4
    assert 3.35e12 / (state_bytes(COMPILED["mnist-paper"]) * 784) == pytest.approx(11_991, abs=1)


def test_graphs_by_power_of_two_rows_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph serves all numbers of rows up to its power of two; the last one up to the maximum."""
    launched: list[tuple[int, int]] = []  # by the host or into a graph
    replayed: list[list[tuple[int, int]]] = []

    class Kernel:
        def run(self, rows: int, subpixel: int) -> None:
            launched.append((rows, subpixel))

    class Graph:
        def capture_begin(self, capture_error_mode: str) -> None:
            self.before = len(launched)

        def capture_end(self) -> None:
            self.launches = launched[self.before :]

        def replay(self) -> None:
            replayed.append(self.launches)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    steps = StepRunner({1: [Kernel()]}, steps_per_pixel=2, max_rows=5)  # type: ignore[list-item]
    steps.run(3, 10)
    assert launched == [(3, subpixel) for _ in range(10) for subpixel in (0, 1)]
    steps.capture()
    captured = len(launched)
    for rows, bucket in ((1, 1), (2, 2), (3, 4), (5, 5)):
        replayed.clear()
        steps.run(rows, 17)
        one = [(bucket, 0), (bucket, 1)]
        assert replayed == [8 * one, 8 * one, one]
    assert len(launched) == captured


def test_launches_are_selected_by_number_of_rows() -> None:
    run: list[tuple[str, int]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, rows: int, subpixel: int) -> None:
            run.append((self.name, rows))

    launches = {1: [Kernel("few")], 4: [Kernel("many")]}
    steps = StepRunner(launches, steps_per_pixel=1, max_rows=9)  # type: ignore[arg-type]
    steps.compile()
    assert run == [("few", 1), ("many", 4)]
    run.clear()
    for rows in (1, 3, 4, 9):
        steps.run(rows, 1)
    assert run == [("few", 1), ("few", 3), ("many", 4), ("many", 9)]
