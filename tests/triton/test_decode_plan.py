"""What is compiled ahead of time is what is launched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.kernels.cuda.decode_config import COMPILED, allocate, allocate_weights, state_bytes
from scanline.kernels.cuda.decode_plan import BN_MANY, plan, variants
from scanline.kernels.cuda.launch import StepRunner
from scanline.kernels.cuda.matmul import project_kernel
from scanline.model.config import PRESETS
from scanline.model.decoders.packing import decode_config_for


def test_the_presets_are_compiled() -> None:
    for name, config in PRESETS.items():
        assert COMPILED[name] == decode_config_for(config), name


def test_the_variants_are_the_launches() -> None:
    """Every launch of a preset is among them, once, and names all arguments of its kernel."""
    found = variants(overlap=True)
    names = [variant.name for variant in found]
    assert len(set(names)) == len(names)
    for variant in found:
        given = variant.signature.keys() | variant.constants.keys()
        assert given == set(variant.kernel.arg_names), variant.name
    sizes = COMPILED["mnist-paper"]
    memory = allocate_weights(sizes, "meta"), allocate(sizes, 64, "meta")
    few, many = (plan(sizes, *memory, overlap=True, many=many) for many in (False, True))
    assert len(few) == len(many) == 5 * 8 + 4
    compiled = [(v.kernel, v.signature, v.constants) for v in found]
    for launch in (*few, *many):
        mine = launch.variant("")
        assert (mine.kernel, mine.signature, mine.constants) in compiled


def test_plans_for_few_and_many_rows_sum_in_one_order() -> None:
    """Rows and columns of tiles may differ, not summands, nor the tiles of a row's statistics."""
    for name, sizes in COMPILED.items():
        memory = allocate_weights(sizes, "meta"), allocate(sizes, 64, "meta")
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


def test_bytes_of_a_step_are_counted() -> None:
    """Of one head with K = 32: plainly, 33 × 32 floats there and back; then as documented."""
    one = replace(COMPILED["mnist-paper"], layers=1, heads=1, d_model=32)
    assert state_bytes(replace(one, write_interval=1)) == 4 * 2 * 33 * 32
    # Written in the fourth step; in the others two numbers of bf16 a feature, 1 + 2 + 3 read again.
    four = 4 * 5 * 33 * 32 + 2 * (3 + 6) * 64
    assert state_bytes(replace(one, write_interval=4)) == four / 4
    assert 3.35e12 / (state_bytes(COMPILED["mnist-paper"]) * 784) == pytest.approx(11_991, abs=1)


def test_pixels_are_drawn_in_as_few_graphs_as_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph serves every number of rows up to its power of two, the last up to all there are."""
    launched: list[tuple[int, int]] = []  # by the host, or into a graph
    replayed: list[list[tuple[int, int]]] = []

    class Kernel:
        def run(self, rows: int, part: int) -> None:
            launched.append((rows, part))

    class Graph:
        def capture_begin(self, capture_error_mode: str) -> None:
            self.before = len(launched)

        def capture_end(self) -> None:
            self.holds = launched[self.before :]

        def replay(self) -> None:
            replayed.append(self.holds)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    steps = StepRunner({1: [Kernel()]}, steps_per_pixel=2, max_rows=5)  # type: ignore[list-item]
    steps.run(3, 10)
    assert launched == [(3, part) for _ in range(10) for part in (0, 1)]
    steps.capture()
    captured = len(launched)
    for rows, bucket in ((1, 1), (2, 2), (3, 4), (5, 5)):
        replayed.clear()
        steps.run(rows, 17)
        one = [(bucket, 0), (bucket, 1)]
        assert replayed == [8 * one, 8 * one, one]
    assert len(launched) == captured


def test_many_rows_have_launches_of_their_own() -> None:
    """The largest number not above the rows', or above those that a graph is made for."""
    run: list[tuple[str, int]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, rows: int, part: int) -> None:
            run.append((self.name, rows))

    launches = {1: [Kernel("few")], 4: [Kernel("many")]}
    steps = StepRunner(launches, steps_per_pixel=1, max_rows=9)  # type: ignore[arg-type]
    steps.compile()
    assert run == [("few", 1), ("many", 4)]
    run.clear()
    for rows in (1, 3, 4, 9):
        steps.run(rows, 1)
    assert run == [("few", 1), ("few", 3), ("many", 4), ("many", 9)]
