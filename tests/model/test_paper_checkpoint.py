"""Tests of importing the paper authors' checkpoints."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.model.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.paper_checkpoint import import_paper_checkpoint


def authors_tensors(layers: int, width: int = 256) -> dict[str, Tensor]:
    """Create a random state dict with the authors' names."""
    D, generator = width, torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    tensors = {
        "value_embedding.weight": normal(256, D // 2, scale=1.0),
        "pos_embedding.pe": normal(1, 100, D // 2, scale=1.0),
    }
    linears = {"predictor": (30, D)}
    norms = ["transformer.norm"]
    for i in range(layers):
        layer = f"transformer.layers.{i}"
        for part in ("query", "key", "value", "out"):
            linears[f"{layer}.attention.{part}_projection"] = (D, D)
        linears |= {f"{layer}.linear1": (4 * D, D), f"{layer}.linear2": (D, 4 * D)}
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = normal(*shape, scale=1.5 / shape[1] ** 0.5)
        tensors[f"{name}.bias"] = normal(shape[0], scale=0.1)
    for name in norms:
        tensors[f"{name}.weight"] = 1 + normal(D, scale=0.2)
        tensors[f"{name}.bias"] = normal(D, scale=0.2)
    return tensors


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def authors_network(
    tensors: dict[str, Tensor], values: Tensor, layers: int, width: int = 256, heads: int = 8
) -> Tensor:
    """Compute the authors' network in plain torch: values ``x[:-1]`` → predictions of ``x[1:]``.

    Value embedding beside a sinusoidal code, post-norm layers of elu + 1 linear attention with
    ReLU feed-forward, a last norm, the predictor. Attention here is one causal matrix.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    T, D, H = len(values), width, heads
    code = torch.zeros(T, D // 2, dtype=torch.float64)
    place = torch.arange(T, dtype=torch.float64)
    for i in range(0, D // 2, 2):
        code[:, i] = torch.sin(place / 10_000 ** (i / (D // 2)))
        code[:, i + 1] = torch.cos(place / 10_000 ** (i / (D // 2)))
    x = torch.cat([w["value_embedding.weight"][values.long()], code], -1)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normed(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"])

    for i in range(layers):
        layer = f"transformer.layers.{i}"
        q, k, v = (
            linear(x, f"{layer}.attention.{part}_projection").view(T, H, D // H)
            for part in ("query", "key", "value")
        )
        outputs = []
        for h in range(H):
            scores = ((F.elu(q[:, h]) + 1) @ (F.elu(k[:, h]) + 1).T).tril()
            outputs.append(scores @ v[:, h] / (scores.sum(-1, keepdim=True) + 1e-6))
        attended = linear(torch.cat(outputs, -1), f"{layer}.attention.out_projection")
        x = normed(x + attended, f"{layer}.norm1")
        y = linear(linear(x, f"{layer}.linear1").clamp(min=0), f"{layer}.linear2")
        x = normed(x + y, f"{layer}.norm2")
    return linear(normed(x, "transformer.norm"), "predictor")


def nested(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"model_state": tensors, "epoch": 7, "optimizer": {"lr": 1e-3}}


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {f"module.{name}": tensor for name, tensor in tensors.items()}


def test_imported_network_computes_the_same(tmp_path: Path) -> None:
    tensors = authors_tensors(8)
    torch.save(nested(prefixed(tensors)), tmp_path / "theirs.pt")
    imported = import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper", first_value=3)
    network = imported.model.double()
    values = torch.randint(0, 256, (784,), generator=torch.Generator().manual_seed(1))
    canvas = values.view(1, 784, 1).to(torch.uint8)
    with torch.no_grad():
        ours = network(canvas)[0]
        theirs = authors_network(tensors, values[:-1], 8)
    assert ours.shape == theirs.shape == (783, 30)
    # The authors' positional encoding is float32, ours in this test float64.
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours[:64], theirs[:64], rtol=2e-5, atol=2e-5)
    assert imported.name == "mnist-paper"
    assert network.config.start == "given"
    assert network.config.first_value == 3


@pytest.mark.parametrize(("heads", "expected"), [(None, 6), (3, 3)])
def test_sizes_are_those_of_the_tensors(heads: int | None, expected: int, tmp_path: Path) -> None:
    """The authors' default is 4 layers; their width is 32 features per head."""
    tensors = authors_tensors(4, 192)
    torch.save(tensors, tmp_path / "theirs.pt")
    network = import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper", heads=heads).model
    c = network.config
    assert (c.n_layers, c.n_heads, c.d_model, c.d_ff) == (4, expected, 192, 768)
    values = torch.randint(0, 256, (784,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = network.double()(values.view(1, 784, 1).to(torch.uint8))[0]
        theirs = authors_network(tensors, values[:-1], 4, 192, expected)
    torch.testing.assert_close(ours[:64], theirs[:64], rtol=2e-5, atol=2e-5)


def test_sizes_without_whole_heads_are_rejected(tmp_path: Path) -> None:
    torch.save(authors_tensors(1, 100), tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match=r"d_model 100 is not a multiple .* choose --heads"):
        import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")
    imported = import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper", heads=4)
    assert imported.model.config.n_heads == 4


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module._orig_mod.", "model.", "model._orig_mod.module."]
)
def test_prefixes_of_wrappers_are_removed(prefix: str, tmp_path: Path) -> None:
    tensors = {prefix + name: tensor for name, tensor in authors_tensors(1).items()}
    torch.save({"state_dict": tensors}, tmp_path / "theirs.pt")
    imported = import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")
    assert imported.model.config.n_layers == 1


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (np.float64(3), "it holds a NumPy scalar, which"),
        (np.zeros(3), "it holds a NumPy array, which"),
        (argparse.Namespace(lr=1), "it holds an object of argparse.Namespace, which"),
        (torch.nn.Linear(1, 1), r"it holds an object of torch\.nn\.modules\.linear\.Linear, which"),
    ],
)
def test_the_class_that_cannot_be_loaded_is_named(
    extra: object, named: str, tmp_path: Path
) -> None:
    torch.save({"model_state": authors_tensors(1), "extra": extra}, tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match=named + ".* save the weights alone"):
        import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")


@pytest.mark.parametrize("wrap", [dict, prefixed, nested], ids=lambda f: f.__name__)
def test_imported_checkpoint_can_be_saved_and_served(
    tmp_path: Path,
    wrap: Callable[[dict[str, Tensor]], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use two layers instead of eight, because only the names matter."""
    small = PRESETS["mnist-paper"].to_dict() | {"n_layers": 2}
    monkeypatch.setitem(PRESETS, "mnist-paper", ModelConfig.from_dict(small))
    tensors = authors_tensors(2)
    torch.save(wrap(tensors), tmp_path / "theirs.pt")
    imported = import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")
    save_checkpoint(tmp_path / "ours.safetensors", imported.model, imported.facts)
    again = load_checkpoint(tmp_path / "ours.safetensors")
    assert again.facts == {"imported_from": "theirs.pt"}
    ours = again.model.state_dict()
    assert torch.equal(
        ours["blocks.1.attention.out.bias"], tensors[f"{LAYER1}.attention.out_projection.bias"]
    )
    assert torch.equal(ours["blocks.1.linear2.weight"], tensors[f"{LAYER1}.linear2.weight"])
    assert len(ours) == len(tensors) - 1  # all but the buffer pos_embedding.pe


LAYER1 = "transformer.layers.1"


def cast(change: Callable[[Tensor], Tensor]) -> Callable[[dict[Any, Any]], object]:
    return lambda t: t.update({"predictor.bias": change(t["predictor.bias"])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("predictor.bias"), r"missing \['head.predictor.bias'\]"),
        (lambda t: t.pop(f"{LAYER1}.norm2.weight"), r"missing \['blocks.1.norm2.weight'\]"),
        (lambda t: t.update(more=torch.ones(1)), r"unknown \['more'\]"),
        (
            lambda t: t.update({"transformer.layers.2.norm1.bias": torch.ones(256)}),
            "its layers need at least",
        ),
        (
            lambda t: t.update({"predictor.bias": torch.ones(768)}),
            r"head.predictor.bias has shape \[768\], expected \[30\]",
        ),
        (lambda t: t["predictor.bias"].fill_(torch.nan), "head.predictor.bias contains NaN"),
        (cast(Tensor.to_sparse), r"bias is not a dense float tensor \(sparse_coo, float32, cpu\)"),
        (cast(Tensor.long), r"bias is not a dense float tensor \(strided, int64, cpu\)"),
        (
            cast(lambda x: x.to(torch.complex64)),
            r"bias is not a dense float tensor \(strided, complex64, cpu\)",
        ),
        (
            cast(lambda x: x.to("meta")),
            r"bias is not a dense float tensor \(strided, float32, meta\)",
        ),
        (lambda t: t.update(epoch=3), "'epoch' is of type int; save the weights alone"),
        (
            lambda t: t.update({"module.predictor.bias": torch.ones(30)}),
            "several tensors named 'head.predictor.bias'",
        ),
        (lambda t: t.update({3: torch.ones(1)}), "does not hold a state dict"),
    ],
)
def test_other_networks_are_rejected(
    tmp_path: Path,
    change: Callable[[dict[Any, Any]], object],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = PRESETS["mnist-paper"].to_dict() | {"n_layers": 2}
    monkeypatch.setitem(PRESETS, "mnist-paper", ModelConfig.from_dict(small))
    tensors = authors_tensors(2)
    change(tensors)
    torch.save(tensors, tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match=message):
        import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")


class Malicious:
    """Object whose pickle runs code when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    torch.save({"model_state": Malicious(proof)}, path)
    with pytest.raises(CheckpointError, match=r"evil.pt is not a PyTorch file of plain tensors"):
        import_paper_checkpoint(path, "mnist-paper")
    path.write_bytes(pickle.dumps(Malicious(proof)))
    with pytest.raises(CheckpointError, match=r"evil.pt is not a PyTorch file of plain tensors"):
        import_paper_checkpoint(path, "mnist-paper")
    assert not proof.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"{}", bytes(300), b"\x89PNG\r\n\x1a\n" + bytes(50),
        b"PK\x03\x04" + bytes(99), pickle.dumps({"a": 1})[:-3], b"\x80\x02h\x05.",
        b"\x80\x02}q\x00X\xff\xff\x00\x00a.", b"(lp0\n.",
    ],
)  # fmt: skip
def test_other_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"odd.pt (is not a PyTorch file|does not hold)"):
        import_paper_checkpoint(path, "mnist-paper")


def test_truncated_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "half.pt"
    torch.save({"predictor.bias": torch.ones(3000)}, path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"half.pt is not a PyTorch file of [^.]+$"):
        import_paper_checkpoint(path, "mnist-paper")


def test_wrong_path_or_preset_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*nowhere.pt"):
        import_paper_checkpoint(tmp_path / "nowhere.pt", "mnist-paper")
    with pytest.raises(CheckpointError, match="preset must be mnist-paper or cifar10-paper; got"):
        import_paper_checkpoint(tmp_path / "nowhere.pt", "mnist")
    with pytest.raises(CheckpointError, match="is not a PyTorch file"):
        import_paper_checkpoint(tmp_path, "mnist-paper")
