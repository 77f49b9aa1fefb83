"""The training library: threads, forks and its absence."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from scanline.kernels.native.build import NativeBuildError, find_compiler
from scanline.kernels.native.training import library
from scanline.kernels.native.training.residual import bias_gelu
from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, tiny_config

try:
    find_compiler()
except NativeBuildError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def shipped_shapes(**fields: object) -> ModelConfig:
    """Return a config whose heads are a multiple of the vector size on every ISA."""
    return tiny_config(
        d_model=64, d_ff=64, short_conv="2x3", channels=3, encoding="linear",
        head="logistic_mixture", **fields,
    )  # fmt: skip


def gradients(
    config: ModelConfig, canvas: Tensor, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    network = LinearTransformer(config).to(dtype)
    torch.autograd.backward(network.bits(canvas).mean())
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    config, found = shipped_shapes(), []
    for threads in (1, 3, 8):  # fewer than images, and more
        chosen = library.TrainingLibrary(threads)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        found.append(gradients(config, random_canvas(config, 5)))
    for others in found[1:]:
        assert found[0].keys() == others.keys()
        assert all(torch.equal(grad, others[name]) for name, grad in found[0].items())


def test_concurrent_calls_from_python_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = library.TrainingLibrary(2)
    monkeypatch.setattr(library, "get_library", lambda: chosen)
    inputs, bias = [torch.randn(2_000, 256) for _ in range(4)], torch.randn(256)
    alone = [bias_gelu(x, bias) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            together = pool.map(lambda x: bias_gelu(x, bias), inputs)
            assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_network_gradients_match_float64() -> None:
    """In float64 everything is plain PyTorch."""
    config = shipped_shapes()
    canvas = random_canvas(config, 3)
    exactly = gradients(config, canvas, torch.float64)
    for name, grad in gradients(config, canvas).items():
        scale = exactly[name].abs().max()
        assert_close(grad / scale, exactly[name] / scale, torch.float32)


def test_without_a_compiler_pytorch_is_used_with_one_warning() -> None:
    code = """
import logging, torch
logging.basicConfig(format="%(message)s")
from scanline.kernels.ops.attention import packed_linear_attention
qkv = torch.randn(1, 4, 3, 1, 32)
for _ in range(2):
    print(packed_linear_attention(qkv, None, "elu").shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "CXX": "no-such-compiler", "SCANLINE_CACHE": "/nonexistent"},
    )  # fmt: skip
    assert done.stdout.count("torch.Size([1, 4, 1, 32])") == 2
    assert done.stderr.count("use slower PyTorch code without C++") == 1
    assert "install g++" in done.stderr


FORKED = """
import os, signal, sys
import torch
from scanline.kernels.native.training import library

torch.set_num_threads(2)
x, bias, y = torch.zeros(4096, 256), torch.zeros(256), torch.zeros(4096, 256)

def run():  # torch's own functions would wait for its threads
    library.require_library().run("bias_gelu_forward", 4096, 256, 64, 0, x, bias, y)

run()
child = os.fork()
if child == 0:
    signal.alarm(60)
    run()
    sys.exit()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_process_has_its_own_threads() -> None:
    """A fork does not wait for its parent's threads, neither in calls nor at exit."""
    subprocess.run([sys.executable, "-c", FORKED], check=True)


EXITING = """
import threading
from scanline.kernels.native.training import library
training_library = library.get_library()
assert training_library is not None
working = threading.Event()
def work():
    with training_library._lock:  # as if a function was running
        working.set()
        threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
working.wait()
training_library.library.training_close = lambda pool: print("closed")
"""


def test_process_exits_during_a_call() -> None:
    """Closing the thread pool at exit would wait forever or break the running call."""
    done = subprocess.run(
        [sys.executable, "-c", EXITING], check=True, capture_output=True, timeout=60
    )
    assert done.stdout == b""


def test_double_backward_raises() -> None:
    """Torch would otherwise silently omit a part of the gradient."""
    x, bias = torch.ones(3, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(bias_gelu(x, bias).sum(), x, create_graph=True)
