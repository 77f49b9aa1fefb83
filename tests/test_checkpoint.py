"""Checkpoints: what goes in comes out, and anything else is refused with a sentence that helps."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.model.checkpoint import (
    FORMAT,
    CheckpointError,
    find_checkpoints,
    import_paper_checkpoint,
    load_checkpoint,
    load_checkpoints,
    save_checkpoint,
    write_atomically,
)
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

FACTS = {"steps": 3, "validation": [{"step": 1.0, "bits_per_dim": 2.5}], "data": "größer"}


def saved(folder: Path, **fields: Any) -> tuple[Path, LinearTransformer]:
    network = random_network(tiny_config(**fields), dtype=torch.float32)
    save_checkpoint(folder / "tiny.safetensors", network, FACTS)
    return folder / "tiny.safetensors", network


@pytest.mark.parametrize(
    "fields",
    [
        {"classes": ("Katze", "犬")},
        {"input": "previous", "start": "given", "first_value": 9, "positions": "sinusoidal"},
        {"channels": 3, "head": "logistic_mixture", "encoding": "table+linear"},
    ],
    ids=str,
)
def test_round_trip(tmp_path: Path, fields: dict[str, Any]) -> None:
    path, network = saved(tmp_path, **fields)
    loaded = load_checkpoint(path)
    assert loaded.name == "tiny"
    assert loaded.facts == FACTS
    assert loaded.model.config == network.config
    assert not loaded.model.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    canvas = random_canvas(network.config, 2)
    with torch.no_grad():
        assert torch.equal(loaded.model.bits(canvas), network.bits(canvas))


def test_half_precision_weights_load_as_float32(tmp_path: Path) -> None:
    network = random_network(tiny_config(), dtype=torch.bfloat16)
    save_checkpoint(tmp_path / "half.safetensors", network, {})
    for tensor in load_checkpoint(tmp_path / "half.safetensors").model.state_dict().values():
        assert tensor.dtype == torch.float32


def test_saving_makes_the_folder_and_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "net.safetensors"
    for steps in (1, 2):
        save_checkpoint(path, LinearTransformer(tiny_config()), {"steps": steps})
        assert load_checkpoint(path).facts == {"steps": steps}
    assert [file.name for file in path.parent.iterdir()] == ["net.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o644  # a server under another user can read it


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new and longer")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# Files that are no checkpoint of ours.


def rewritten(
    path: Path,
    change: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    **metadata: str,
) -> None:
    """Write the checkpoint again with other tensors or metadata."""
    with safetensors.safe_open(path, framework="pt") as file:
        before = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors)
    safetensors.torch.save_file(tensors, path, before | metadata)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*/nowhere"):
        load_checkpoint(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path, _ = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"tiny.safetensors is damaged .* train it again"):
        load_checkpoint(path)


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(4096)])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or no safetensors file"):
        load_checkpoint(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="damaged or no safetensors file"):
        load_checkpoint(tmp_path)


def test_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"format": "scanline/99"}):
        safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata)
        with pytest.raises(CheckpointError, match=r"not one of Scanline's .* `scanline import`"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "config",
    [
        "", "{", "[]", "null", "3", '"mnist"', "{}", json.dumps({"height": 5}),
        json.dumps(tiny_config().to_dict() | {"height": -1}),
        json.dumps(tiny_config().to_dict() | {"depth": 3}),
        json.dumps(tiny_config().to_dict() | {"classes": 3}),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused(tmp_path: Path, config: str) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, config=config)
    with pytest.raises(CheckpointError, match="has a config that cannot be read"):
        load_checkpoint(path)


@pytest.mark.parametrize("facts", ["[]", "3", "{"])
def test_bad_facts_are_refused(tmp_path: Path, facts: str) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, facts=facts)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)


def test_no_config_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, {"format": FORMAT})
    with pytest.raises(CheckpointError, match="has a config that cannot be read"):
        load_checkpoint(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors["norm.bias"].__setitem__(3, value))
    with pytest.raises(CheckpointError, match=r"norm.bias holds NaN or infinity; train it again"):
        load_checkpoint(path)


def test_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors.update({"norm.bias": torch.zeros(17)}))
    with pytest.raises(
        CheckpointError, match=r"norm.bias has shape \[17\], its config says \[16\]"
    ):
        load_checkpoint(path)


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors.update({"extra": tensors.pop("norm.bias")}))
    with pytest.raises(CheckpointError, match=r"missing \['norm.bias'\], unknown \['extra'\]"):
        load_checkpoint(path)


def test_a_folders_checkpoints_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "a.md").touch()
    assert find_checkpoints(tmp_path) == {n: tmp_path / f"{n}.safetensors" for n in "ab"}
    for empty in (tmp_path / "nothing", tmp_path / "absent"):
        with pytest.raises(CheckpointError, match=r"no .*safetensors in .* `scanline train mnist"):
            find_checkpoints(empty)


def test_the_default_is_the_model_of_the_fewest_steps(tmp_path: Path) -> None:
    for name, height in (("a", 5), ("b", 4), ("c", 4)):
        network = random_network(tiny_config(height=height))
        save_checkpoint(tmp_path / f"{name}.safetensors", network, {})
    assert [c.name for c in load_checkpoints(tmp_path)] == ["b", "c", "a"]
    assert [c.name for c in load_checkpoints(tmp_path, ["c", "b"])] == ["c", "b"]
    with pytest.raises(CheckpointError, match=r"no model 'd' in .*; there are: a, b, c"):
        load_checkpoints(tmp_path, ["a", "d"])


# Checkpoints of the paper's authors.


def authors_tensors(layers: int, D: int = 256, seed: int = 0) -> dict[str, Tensor]:
    """Give a random checkpoint under the authors' names."""
    generator = torch.Generator().manual_seed(seed)

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


def authors_network(tensors: dict[str, Tensor], values: Tensor, layers: int) -> Tensor:
    """Compute their network plainly: the values ``x[:-1]`` → predictions of ``x[1:]``.

    Value embedding beside a sinusoidal code, post-norm layers of elu + 1 linear attention with 8
    heads and ReLU feed-forward, a last norm, the predictor. Attention here is one causal matrix.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    T, D, H = len(values), 256, 8
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
        heads = []
        for h in range(H):
            scores = ((F.elu(q[:, h]) + 1) @ (F.elu(k[:, h]) + 1).T).tril()
            heads.append(scores @ v[:, h] / (scores.sum(-1, keepdim=True) + 1e-6))
        attended = linear(torch.cat(heads, -1), f"{layer}.attention.out_projection")
        x = normed(x + attended, f"{layer}.norm1")
        y = linear(linear(x, f"{layer}.linear1").clamp(min=0), f"{layer}.linear2")
        x = normed(x + y, f"{layer}.norm2")
    return linear(normed(x, "transformer.norm"), "predictor")


def nested(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"model_state": tensors, "epoch": 7, "optimizer": {"lr": 1e-3}}


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {f"module.{name}": tensor for name, tensor in tensors.items()}


def test_an_imported_network_computes_what_theirs_does(tmp_path: Path) -> None:
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
    # Their code of the positions is float32, the plain one here float64.
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours[:64], theirs[:64], rtol=2e-5, atol=2e-5)
    assert imported.name == "mnist-paper"
    assert network.config.start == "given"
    assert network.config.first_value == 3


@pytest.mark.parametrize("wrap", [dict, prefixed, nested], ids=lambda f: f.__name__)
def test_an_import_can_be_saved_and_served(
    tmp_path: Path,
    wrap: Callable[[dict[str, Tensor]], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two layers instead of eight: names, not sizes, are what this is about."""
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("predictor.bias"), r"missing \['head.predictor.bias'\]"),
        (lambda t: t.pop(f"{LAYER1}.norm2.weight"), r"missing \['blocks.1.norm2.weight'\]"),
        (lambda t: t.update(more=torch.ones(1)), r"unknown \['more'\]"),
        (
            lambda t: t.update({"transformer.layers.2.norm1.bias": torch.ones(256)}),
            r"unknown \['transformer.layers.2.norm1.bias'\]",
        ),
        (
            lambda t: t.update({"predictor.bias": torch.ones(768)}),
            r"head.predictor.bias has shape \[768\], its config says \[30\]",
        ),
        (lambda t: t["predictor.bias"].fill_(torch.nan), "head.predictor.bias holds NaN"),
        (lambda t: t.update(epoch=3), "holds no dictionary of tensors"),
        (lambda t: t.update({3: torch.ones(1)}), "holds no dictionary of tensors"),
    ],
)
def test_other_networks_are_not_imported(
    tmp_path: Path,
    change: Callable[[dict[Any, Any]], object],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = PRESETS["mnist-paper"].to_dict() | {"n_layers": 2}
    monkeypatch.setitem(PRESETS, "mnist-paper", ModelConfig.from_dict(small))
    tensors = authors_tensors(2)
    change(tensors)
    torch.save(tensors, tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match=says):
        import_paper_checkpoint(tmp_path / "theirs.pt", "mnist-paper")


class Malicious:
    """What a hostile pickle looks like: code to run while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    torch.save({"model_state": Malicious(proof)}, path)
    with pytest.raises(CheckpointError, match=r"evil.pt is no PyTorch file of plain tensors"):
        import_paper_checkpoint(path, "mnist-paper")
    path.write_bytes(pickle.dumps(Malicious(proof)))
    with pytest.raises(CheckpointError, match=r"evil.pt is no PyTorch file of plain tensors"):
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
def test_what_is_no_pytorch_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"odd.pt (is no PyTorch file|holds no dictionary)"):
        import_paper_checkpoint(path, "mnist-paper")


def test_a_truncated_pytorch_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "half.pt"
    torch.save({"predictor.bias": torch.ones(3000)}, path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"half.pt is no PyTorch file of plain tensors: \S"):
        import_paper_checkpoint(path, "mnist-paper")


def test_imports_name_their_mistakes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*nowhere.pt"):
        import_paper_checkpoint(tmp_path / "nowhere.pt", "mnist-paper")
    with pytest.raises(CheckpointError, match="preset must be mnist-paper or cifar10-paper, not"):
        import_paper_checkpoint(tmp_path / "nowhere.pt", "mnist")
    with pytest.raises(CheckpointError, match="is no PyTorch file"):
        import_paper_checkpoint(tmp_path, "mnist-paper")


def test_assertions_compare_the_right_network() -> None:
    """The plain computation itself, against torch's own LayerNorm and softmax-free identities."""
    x = torch.randn(4, 16, dtype=torch.float64)
    ones, zeros = torch.ones(16).double(), torch.zeros(16).double()
    assert_close(layer_norm(x, ones, zeros), F.layer_norm(x, (16,), eps=1e-5))
