"""Compile check for all CUDA kernels, which needs no GPU.

``python -m scanline.kernels.cuda.compile_gate [--arch 80,90,100] [--match REGEX]`` compiles each
variant of the kernel modules, in Triton and CUDA C++, to machine code and prints its resource
usage. It exits with 1 if a variant

- does not compile, or takes too long,
- spills registers (in CUDA C++: uses more local memory than its ``stack``),
- needs more shared memory than a block may have, or
- overlaps with the previous kernel but accesses memory before it waits for that kernel.
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

from scanline.kernels.cuda import attention, decode_plan, linear, prefill, residual
from scanline.kernels.cuda.dependent_launch import CAPABILITY
from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.driver import compile_source
from scanline.kernels.cuda.variants import CudaSource, KernelVariant

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # maximum per block
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Usage:
    """Resource usage of a compiled variant.

    Attributes:
        registers: Registers per thread.
        shared: Bytes of shared memory per block.
        stack: Bytes of stack and local memory per thread, which lie in device memory.
        error: Why the variant failed the check, or None.
    """

    registers: int = 0
    shared: int = 0
    stack: int = 0
    error: str | None = None


def all_variants(arch: int) -> list[KernelVariant | CudaSource]:
    """List every variant that is launched on ``sm_<arch>``."""
    capability = divmod(arch, 10)
    overlap = capability >= CAPABILITY
    return [
        *attention.variants(arch), *linear.variants(), *residual.variants(),
        *decode_plan.variants(overlap=overlap), *prefill.variants(overlap=overlap),
        *fused_decode.variants(capability, _shared_bytes(arch)),
    ]  # fmt: skip


def _shared_bytes(arch: int) -> int:
    return SHARED_BYTES.get(arch, max(SHARED_BYTES.values()))


def to_ast_source(variant: KernelVariant) -> ASTSource:
    """Convert a variant to the input of Triton's compiler.

    Raises:
        ValueError: The variant's arguments differ from the kernel's.
    """
    names: list[str] = variant.kernel.arg_names
    given = [*variant.signature, *variant.constants]
    if sorted(given) != sorted(names):
        wrong = ", ".join(sorted({*given} ^ {*names})) or "one is given twice"
        raise ValueError(f"the variant's arguments differ from the kernel's: {wrong}")
    types = {name: variant.signature.get(name, "constexpr").split(":") for name in names}
    aligned = {
        (i,): [["tt.divisibility", int(types[name][1])]]
        for i, name in enumerate(names)
        if len(types[name]) > 1
    }
    plain = {name: kind[0] for name, kind in types.items()}
    return ASTSource(variant.kernel, plain, variant.constants, aligned)


def waits_first(ptx: str) -> bool:
    """Return True if a kernel waits for the previous one before any access to global memory."""
    waits = ptx.find("griddepcontrol.wait")
    first = re.search(r"\b(ld|st|red|atom|cp)\.[\w.:]*(global|bulk)", ptx)
    return waits >= 0 and (first is None or waits < first.start())


def compile_variant(variant: KernelVariant | CudaSource, arch: int) -> Usage:
    """Compile one variant for ``sm_<arch>`` in this process and return its resource usage."""
    if isinstance(variant, CudaSource):
        capability = divmod(arch, 10)
        binary = compile_source(variant.text, variant.name, variant.defines, capability)
        return _usage(binary, variant.shared, arch, variant.stack)
    options = {
        name: getattr(variant, name) for name in ("num_warps", "num_stages", "maxnreg")
    }  # None is Triton's default
    compiled = triton.compile(
        to_ast_source(variant), target=GPUTarget("cuda", arch, 32), options=options
    )
    usage = _usage(compiled.asm["cubin"], compiled.metadata.shared, arch)
    if variant.constants.get("OVERLAP") and not waits_first(compiled.asm["ptx"]):
        return replace(usage, error="accesses memory before it waits for the previous kernel")
    return usage


def _usage(binary: bytes, shared: int, arch: int, max_stack: int = 0) -> Usage:
    """Read the resource usage of machine code whose threads may use ``max_stack`` bytes."""
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
    if stack + local > max_stack:
        error = "spills registers"
    elif shared > _shared_bytes(arch):
        error = "needs more shared memory than a block may have"
    return Usage(registers, shared, stack + local, error)


def _report(variant: KernelVariant | CudaSource, arch: int, cache: str, reply: Connection) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    try:
        reply.send(compile_variant(variant, arch))
    except Exception as error:  # reported in the table
        cause: BaseException = error  # Triton wraps errors in functions that a kernel calls
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        reply.send(Usage(error=f"{type(cause).__name__}: {lines[-1][:200]}"))


def compile_all(
    jobs: Sequence[tuple[KernelVariant | CudaSource, int]], timeout: float, max_processes: int
) -> Iterator[tuple[KernelVariant | CudaSource, int, Usage, float]]:
    """Compile ``(variant, arch)`` pairs, each in its own process.

    Args:
        jobs: The pairs to compile.
        timeout: Seconds after which a compilation is killed.
        max_processes: Maximum number of processes at a time.

    Yields:
        Variant, arch, resource usage and seconds, in the order in which they finish.
    """
    fork = multiprocessing.get_context("fork")  # Triton is imported once
    todo = list(reversed(jobs))
    running: dict[Connection, tuple[KernelVariant | CudaSource, int, BaseProcess, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        while todo or running:
            while todo and len(running) < max_processes:
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
                    except EOFError:  # the compiler crashed the process
                        process.join()
                        usage = Usage(error=f"the compiler died with code {process.exitcode}")
                else:
                    continue
                process.join()
                reply.close()
                del running[reply]
                yield variant, arch, usage, seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, print its table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="compile_gate", description=__doc__)
    parser.add_argument("--arch", default="80,90,100", help="compute capabilities")
    parser.add_argument(
        "--match", default="", help="compile only variants whose “name sm_90” matches this regex"
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds per variant")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: nothing would be compiled")
    arches = [int(arch) for arch in options.arch.split(",")]
    everything = [(variant, arch) for arch in arches for variant in all_variants(arch)]
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
    verdict = f"{failures} failed" if failures else "all passed"
    print(  # noqa: T201
        f"{len(jobs)} of {len(everything)} variants for sm_{', sm_'.join(map(str, arches))}, "
        f"Triton {triton.__version__}: {verdict} ({took:.0f} s)"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
