"""Training's passes in C++ against their definitions in float64: results, gradients, promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.naive import AttentionState, naive_linear_attention
from scanline.kernels.constants import MIXTURES
from scanline.kernels.native.build import NativeBuildError, find_compiler
from scanline.kernels.native.training import library
from scanline.kernels.native.training.attention import supports_attention
from scanline.kernels.native.training.linear import linear, weight_gradient
from scanline.kernels.native.training.nll import categorical_nll
from scanline.kernels.ops.attention import linear_attention
from scanline.model.bench.training import run_training_bench
from scanline.model.config import ModelConfig
from scanline.model.heads import Head
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

try:
    find_compiler()
except NativeBuildError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def tensors(
    T: int, K: int, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[Tensor]]:
    """Give q, k, v, kv and z that want gradients, and the same in float64."""
    B, H = 2, 9  # one more than take turns together
    given = [torch.randn(B, T, H, K).to(dtype) for _ in range(3)]
    given += [torch.rand(B, H, K, K), torch.rand(B, H, K) + 1]
    exact = [x.double().requires_grad_() for x in given]
    return [x.requires_grad_() for x in given], exact


def attended(
    attend: Callable[..., tuple[Tensor, AttentionState]], given: list[Tensor]
) -> tuple[Tensor, ...]:
    q, k, v, kv, z = given
    o, after = attend(q, k, v, AttentionState(kv, z), feature_map="elu")
    return o, *after


def weighed(outputs: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    return torch.stack([(x * w).sum() for x, w in zip(outputs, weights, strict=True)]).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vectors", [1, 2, 4, 8])
@pytest.mark.parametrize("T", [1, 2, 37])
def test_attention_and_its_gradients_are_those_of_the_definition(
    T: int, vectors: int, dtype: torch.dtype, isa: str
) -> None:
    K = vectors * library.require_library().lanes
    given, exact = tensors(T, K, dtype)
    assert supports_attention(given[0])
    outputs = attended(linear_attention, given)
    wanted = attended(naive_linear_attention, exact)
    for mine, theirs in zip(outputs, wanted, strict=True):
        assert_close(mine, theirs, dtype)
    weights = [torch.randn_like(x, dtype=torch.float64).to(dtype) for x in wanted]
    grads = torch.autograd.grad(weighed(outputs, weights), given)
    exactly = torch.autograd.grad(weighed(wanted, [w.double() for w in weights]), exact)
    for mine, theirs in zip(grads, exactly, strict=True):
        scale = theirs.abs().max()
        assert_close(mine / scale, theirs / scale, dtype)


def test_attention_reads_the_parts_of_one_wide_product(isa: str) -> None:
    """Queries, keys and values that lie side by side, position after position."""
    K = library.require_library().lanes
    wide = torch.randn(2, 9, 3 * 2 * K)
    q, k, v = wide.view(2, 9, 3, 2, K).unbind(2)
    assert not q.is_contiguous()
    together, _ = linear_attention(q, k, v, feature_map="elu")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    apart, _ = linear_attention(q, k, v, feature_map="elu")
    assert torch.equal(apart, together)


def test_a_key_of_minus_infinity_leaves_nothing_and_no_number_stays_none(isa: str) -> None:
    K = library.require_library().lanes
    q, k, v = torch.randn(3, 1, 5, 1, K).unbind()
    k[:, 3:] = -torch.inf
    _, state = linear_attention(q, k, v, feature_map="elu")
    _, shorter = linear_attention(q[:, :3], k[:, :3], v[:, :3], feature_map="elu")
    assert torch.equal(state.kv, shorter.kv)
    assert torch.equal(state.z, shorter.z)
    q[:, 1] = torch.nan
    o, _ = linear_attention(q, k, v, feature_map="elu")
    assert o.isnan().all(-1).flatten().tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_a_mixtures_bits_and_their_gradient_are_those_of_the_definition(
    channels: int, spread: float, isa: str
) -> None:
    """Values at both ends and far out, scales so small that they are held."""
    config = tiny_config(channels=channels, head="logistic_mixture")
    head = Head(config)
    parameters = spread * torch.randn(400, config.head_outputs)
    values = torch.randint(0, 256, (400, channels), dtype=torch.uint8)
    values[:40], values[40:80] = 0, 255
    scales = slice((1 + channels) * MIXTURES, (1 + 2 * channels) * MIXTURES)
    parameters[::4, scales] -= 4  # some of them below the smallest, most bins almost empty
    parameters.requires_grad_()
    exact = parameters.detach().double().requires_grad_()
    bits, expected = head.bits(parameters, values), head.bits(exact, values)
    assert_close(bits, expected)
    (grad,) = torch.autograd.grad(bits.sum(), parameters)
    (exactly,) = torch.autograd.grad(expected.sum(), exact)
    scale = exactly.abs().amax(1, keepdim=True)
    assert_close(grad / scale, exactly / scale, torch.float32)


@pytest.mark.parametrize("channels", [1, 3])
def test_logits_bits_and_their_gradient_are_those_of_the_definition(
    channels: int, isa: str
) -> None:
    config = tiny_config(channels=channels, head="categorical")
    head = Head(config)
    parameters = 8 * torch.randn(70, config.head_outputs)
    parameters[:9] *= 100  # some values are next to impossible
    values = torch.randint(0, 256, (70, channels), dtype=torch.uint8)
    parameters.requires_grad_()
    exact = parameters.detach().double().requires_grad_()
    bits, expected = head.bits(parameters, values), head.bits(exact, values)
    assert_close(bits, expected)
    weights = torch.randn(70)
    (grad,) = torch.autograd.grad((bits * weights).sum(), parameters)
    (exactly,) = torch.autograd.grad((expected * weights.double()).sum(), exact)
    assert_close(grad, exactly, torch.float32)


@pytest.mark.parametrize("head", ["categorical", "logistic_mixture"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_no_number_costs_none(wrong: float, head: str, isa: str) -> None:
    config = tiny_config(head=head)
    parameters = torch.zeros(3, config.head_outputs)
    parameters[1, 7] = wrong
    bits = Head(config).bits(parameters, torch.full((3, 1), 200, dtype=torch.uint8))
    assert bits.isfinite().tolist() == [True, False, True]


def shipped_shapes(**fields: object) -> ModelConfig:
    """Give a config whose heads are whole vectors on every ISA."""
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


def test_threads_of_python_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = library.TrainingLibrary(2)
    monkeypatch.setattr(library, "get_library", lambda: chosen)
    logits = [torch.randn(2_000, 256) for _ in range(4)]
    values = torch.randint(0, 256, (2_000,), dtype=torch.uint8)
    alone = [categorical_nll(x, values)[0] for x in logits]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            together = pool.map(lambda x: categorical_nll(x, values)[0], logits)
            assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_networks_gradients_are_those_of_float64() -> None:
    """There, nothing is native."""
    config = shipped_shapes()
    canvas = random_canvas(config, 3)
    exactly = gradients(config, canvas, torch.float64)
    for name, grad in gradients(config, canvas).items():
        scale = exactly[name].abs().max()
        assert_close(grad / scale, exactly[name] / scale, torch.float32)


@pytest.mark.parametrize(
    ("head", "bf16"),
    [
        ("categorical", False),
        ("logistic_mixture", True),
        pytest.param("categorical", True, marks=pytest.mark.broad),
        pytest.param("logistic_mixture", False, marks=pytest.mark.broad),
    ],
)
def test_they_compile_without_a_break_in_the_graph(
    head: Literal["categorical", "logistic_mixture"], bf16: bool
) -> None:
    tables = head == "categorical"
    config = replace(shipped_shapes(), head=head, encoding="table" if tables else "linear")
    network, canvas = random_network(config, dtype=torch.float32), random_canvas(config, 2)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    found = []
    for run in (network, compiled):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            parameters = run(canvas)
        loss = network.bits_from(parameters, canvas).mean()
        found.append((loss, *torch.autograd.grad(loss, list(network.parameters()))))
    for plain, other in zip(*found, strict=True):
        scale = plain.abs().max()
        assert_close(other / scale, plain / scale, torch.bfloat16 if bf16 else torch.float32)


def test_without_a_compiler_one_line_says_so_and_all_goes_on() -> None:
    code = """
import logging, torch
logging.basicConfig(format="%(message)s")
from scanline.kernels.ops.attention import linear_attention
x = torch.randn(1, 4, 1, 32)
for _ in range(2):
    print(linear_attention(x, x, x, feature_map="elu")[0].shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "CXX": "no-such-compiler", "SCANLINE_CACHE": "/nonexistent"},
    )  # fmt: skip
    assert done.stdout.count("torch.Size([1, 4, 1, 32])") == 2
    assert done.stderr.count("use slower PyTorch code without C++") == 1
    assert "install g++" in done.stderr


def test_the_benchmark_compares_the_ways_to_take_a_step() -> None:
    lines: list[str] = []
    report = run_training_bench(["mnist"], 1, 1, lines.append, batch=1)
    ways = ["native passes", "plain torch", "native, no convolution"]
    assert [timing.way for timing in report.timings] == ways
    assert all(timing.images_a_second > 0 for timing in report.timings)
    assert all(timing.peak_share is not None for timing in report.timings)
    assert "times plain torch; the short convolution takes" in lines[-1]
    with pytest.raises(ValueError, match="no preset 'mnits'"):
        run_training_bench(["mnits"], 1, 1, lines.append)


FORKED = """
import os, signal, sys
import torch
from scanline.kernels.native.training import library

torch.set_num_threads(2)
values = torch.zeros(4096, dtype=torch.uint8)
logits, nats, sums = (torch.zeros(4096, size) for size in (256, 1, 2))

def run():  # torch itself would wait for its own threads
    library.require_library().run("categorical_forward", 4096, 64, logits, values, nats, sums)

run()
child = os.fork()
if child == 0:
    signal.alarm(60)
    run()
    sys.exit()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    """And does not wait for the other's, neither at work nor at its end."""
    subprocess.run([sys.executable, "-c", FORKED], check=True)


ENDING = """
import threading
from scanline.kernels.native.training import library
given = library.get_library()
assert given is not None
at_work = threading.Event()
def work():
    with given._lock:  # as in the middle of a pass
        at_work.set()
        threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
at_work.wait()
given.library.training_close = lambda pool: print("closed")
"""


def test_a_process_ends_without_taking_the_threads_from_a_pass_under_way() -> None:
    """Which would wait for them for ever, or find them gone."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], check=True, capture_output=True, timeout=60
    )
    assert done.stdout == b""


def test_a_gradient_that_has_none_itself_is_refused() -> None:
    """Torch alone would leave it out, and what follows would be wrong."""
    x, weight = torch.ones(3, 2, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="scanline::weight_gradient has no gradient"):
        weight_gradient(linear(x, weight), x).sum().backward()
