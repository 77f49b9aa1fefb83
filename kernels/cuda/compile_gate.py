"""Compile every kernel that we launch, for GPUs that are not here: a gate for every change.

``python -m scanline.kernels.cuda.compile_gate [--arch 80,90,100] [--match TEXT]`` compiles each
variant of the kernel modules to machine code, Triton's and the one in CUDA C++, prints what it
takes of a multiprocessor, and exits 1 if one fails, spills registers (of that in CUDA C++, more
than its ``stack``), needs more shared memory than a block may have, takes too long, or overlaps
with the kernel before it and does not wait for that first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scanline.kernels.cuda import attention as triton_attention
from scanline.kernels.cuda import decode_plan as triton_decode
from scanline.kernels.cuda import linear as triton_linear
from scanline.kernels.cuda import residual as triton_residual
from scanline.kernels.cuda.dependent_launch import CAPABILITY
from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.driver import compile_source
from scanline.kernels.cuda.variants import CudaSource, KernelVariant

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # that a block may have
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Usage:
    """What a compiled variant takes: registers a thread, bytes of shared memory and of stack.

    ``stack`` counts local memory too; both mean that registers are spilled to device memory.
    ``error`` says why there is no code, or why it must not run; None where all is well.
    """

    registers: int = 0
    shared: int = 0
    stack: int = 0
    error: str | None = None


def launched(arch: int) -> list[KernelVariant | CudaSource]:
    """List every variant as it is launched on ``sm_<arch>``."""
    capability = divmod(arch, 10)
    return [
        *triton_attention.variants(arch), *triton_linear.variants(), *triton_residual.variants(),
        *triton_decode.variants(overlap=capability >= CAPABILITY),
        *fused_decode.variants(capability, _shared_bytes(arch)),
    ]  # fmt: skip


def _shared_bytes(arch: int) -> int:
    return SHARED_BYTES.get(arch, max(SHARED_BYTES.values()))


def source(variant: KernelVariant) -> ASTSource:
    """Give the variant as Triton's compiler takes it; ``ValueError`` on names that do not fit."""
    names: list[str] = variant.kernel.arg_names
    given = [*variant.signature, *variant.constants]
    if sorted(given) != sorted(names):
        wrong = ", ".join(sorted({*given} ^ {*names})) or "one given twice"
        raise ValueError(f"the variant does not fit the kernel's arguments: {wrong}")
    types = {name: variant.signature.get(name, "constexpr").split(":") for name in names}
    aligned = {
        (i,): [["tt.divisibility", int(types[name][1])]]
        for i, name in enumerate(names)
        if len(types[name]) > 1
    }
    plain = {name: kind[0] for name, kind in types.items()}
    return ASTSource(variant.kernel, plain, variant.constants, aligned)


def waits_first(ptx: str) -> bool:
    """Say whether a kernel waits for the one before it ahead of all that it loads and stores."""
    waits = ptx.find("griddepcontrol.wait")
    first = re.search(r"\b(ld|st|red|atom|cp)\.[\w.:]*(global|bulk)", ptx)
    return waits >= 0 and (first is None or waits < first.start())


def compile_variant(variant: KernelVariant | CudaSource, arch: int) -> Usage:
    """Compile one variant in this process for ``sm_<arch>`` and read what it takes."""
    if isinstance(variant, CudaSource):
        capability = divmod(arch, 10)
        binary = compile_source(variant.text, variant.name, variant.defines, capability)
        return _usage(binary, variant.shared, arch, variant.stack)
    options = {
        name: getattr(variant, name) for name in ("num_warps", "num_stages", "maxnreg")
    }  # None is Triton's own default
    compiled = triton.compile(source(variant), target=GPUTarget("cuda", arch, 32), options=options)
    usage = _usage(compiled.asm["cubin"], compiled.metadata.shared, arch)
    if variant.constants.get("OVERLAP") and not waits_first(compiled.asm["ptx"]):
        return replace(usage, error="touches memory before the kernel before it has ended")
    return usage


def _usage(binary: bytes, shared: int, arch: int, most: int = 0) -> Usage:
    """Read what machine code takes; a thread may have ``most`` bytes in device memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        listing = subprocess.run(
            [_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", listing)
    if found is None:
        raise ValueError(f"cuobjdump lists no registers: {listing.strip()[:200]}")
    registers, stack, local = (int(number) for number in found.groups())
    error = None
    if stack + local > most:
        error = "spills registers"
    elif shared > _shared_bytes(arch):
        error = "needs more shared memory than a block may have"
    return Usage(registers, shared, stack + local, error)


def _report(variant: KernelVariant | CudaSource, arch: int, cache: str, reply: Connection) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    try:
        reply.send(compile_variant(variant, arch))
    except Exception as error:  # told in the table
        cause: BaseException = error  # of a fault in a function that a kernel calls, the fault
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        reply.send(Usage(error=f"{type(cause).__name__}: {lines[-1][:200]}"))


def compile_all(
    jobs: Sequence[tuple[KernelVariant | CudaSource, int]], timeout: float, at_once: int
) -> Iterator[tuple[KernelVariant | CudaSource, int, Usage, float]]:
    """Compile ``(variant, arch)`` pairs, each in a process of its own; yields as they end.

    Yields the pair, its usage and its seconds. One that takes longer than ``timeout`` is killed.
    """
    fork = multiprocessing.get_context("fork")  # Triton is imported once
    todo = list(reversed(jobs))
    running: dict[Connection, tuple[KernelVariant | CudaSource, int, BaseProcess, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        while todo or running:
            while todo and len(running) < at_once:
                variant, arch = todo.pop()
                ours, theirs = fork.Pipe(duplex=False)
                process: BaseProcess = fork.Process(
                    target=_report, args=(variant, arch, cache, theirs)
                )
                process.start()
                theirs.close()
                running[ours] = (variant, arch, process, time.monotonic())
            ready = wait(list(running), timeout=0.5)
            for reply, (variant, arch, process, began) in list(running.items()):
                seconds = time.monotonic() - began
                if seconds > timeout:
                    process.kill()
                    usage = Usage(error=f"takes longer than {timeout:g} s")
                elif reply in ready:
                    try:
                        usage = reply.recv()
                    except EOFError:  # the compiler took the process with it
                        process.join()
                        usage = Usage(error=f"the compiler died with code {process.exitcode}")
                else:
                    continue
                process.join()
                reply.close()
                del running[reply]
                yield variant, arch, usage, seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gate, print its table, and give the exit code."""
    parser = argparse.ArgumentParser(prog="compile_gate", description=__doc__)
    parser.add_argument("--arch", default="80,90,100", help="capabilities, as 80,90,100")
    parser.add_argument(
        "--match", default="", help="only those whose “name sm_90” match this regex"
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds a variant")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: there is nothing to compile")
    arches = [int(arch) for arch in options.arch.split(",")]
    everything = [(variant, arch) for arch in arches for variant in launched(arch)]
    jobs = [(v, arch) for v, arch in everything if re.search(options.match, f"{v.name} sm_{arch}")]
    if not jobs:
        parser.error(f"no variant's name matches {options.match!r}")
    width = max(len(variant.name) for variant, _ in jobs)

    print(f"{'variant':{width}}  arch  regs  shared  stack  seconds", flush=True)  # noqa: T201
    failures = 0
    began = time.monotonic()
    for variant, arch, usage, seconds in compile_all(jobs, options.timeout, options.jobs):
        failures += usage.error is not None
        row = f"{variant.name:{width}}  {arch:4}  {usage.registers:4}  {usage.shared:6}"
        row += f"  {usage.stack:5}  {seconds:7.1f}"
        print(row + (f"  FAILS: {usage.error}" if usage.error else ""), flush=True)  # noqa: T201
    took = time.monotonic() - began
    verdict = f"{failures} fail" if failures else "all compile, none spills too much"
    print(  # noqa: T201
        f"{len(jobs)} of {len(everything)} variants for sm_{', sm_'.join(map(str, arches))}, "
        f"Triton {triton.__version__}: {verdict} ({took:.0f} s)"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
