"""Checkpoints: round trips, and helpful errors for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from scanline.model import checkpoint
from scanline.model.checkpoint import (
    FORMAT,
    Checkpoint,
    CheckpointError,
    find_checkpoints,
    load_by_name,
    load_checkpoint,
    load_checkpoints,
    read_config,
    save_checkpoint,
)
from scanline.model.network import LinearTransformer
from tests.conftest import random_canvas, random_network, tiny_config

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
        {"channels": 3, "head": "logistic_mixture", "encoding": "linear"},
        {"attention": "lsh-4"},
    ],
    ids=str,
)
def test_round_trip(tmp_path: Path, fields: dict[str, Any]) -> None:
    path, network = saved(tmp_path, **fields)
    loaded = load_checkpoint(path)
    assert loaded.name == "tiny"
    assert loaded.facts == FACTS
    assert loaded.digest == Checkpoint("another", network).digest
    assert loaded.model.config == network.config
    assert not loaded.model.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    canvas = random_canvas(network.config, 2)
    with torch.no_grad():
        assert torch.equal(loaded.model.bits(canvas), network.bits(canvas))


def test_digest_depends_on_the_config() -> None:
    gelu = random_network(tiny_config(activation="gelu"))
    relu = LinearTransformer(tiny_config(activation="relu"))
    relu.load_state_dict(gelu.state_dict())
    assert Checkpoint("a", gelu).digest != Checkpoint("a", relu).digest


def test_loading_is_independent_of_torch_state_and_preserves_it(tmp_path: Path) -> None:
    path, network = saved(tmp_path)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            loaded = load_checkpoint(path).model
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    for (name, mine), (_, theirs) in zip(
        loaded.named_buffers(), network.named_buffers(), strict=True
    ):
        assert torch.equal(mine, theirs), name


def test_saving_creates_the_folder_and_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "net.safetensors"
    for steps in (1, 2):
        save_checkpoint(path, LinearTransformer(tiny_config()), {"steps": steps})
        assert load_checkpoint(path).facts == {"steps": steps}
    assert [file.name for file in path.parent.iterdir()] == ["net.safetensors"]


# Files that are not Scanline checkpoints.


def rewritten(
    path: Path,
    change: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    **metadata: str,
) -> None:
    """Rewrite a checkpoint with other tensors or metadata."""
    with safetensors.safe_open(path, framework="pt") as file:
        before = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors)
    safetensors.torch.save_file(tensors, path, before | metadata)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999, 1.0])
def test_truncated_or_padded_file_is_rejected(tmp_path: Path, share: float) -> None:
    path, _ = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content + b"\n" if share == 1 else content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"tiny.safetensors is damaged .* train it again"):
        load_checkpoint(path)


def test_unknown_dtype_is_rejected(tmp_path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(CheckpointError, match=r"damaged .* \(unknown dtype 'F4'\)"):
        load_checkpoint(path)


def test_weights_are_not_mapped_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a file that is truncated while it is read would end the process."""
    path, network = saved(tmp_path)
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: pytest.fail("was mapped"))
    monkeypatch.setattr("safetensors.torch.safe_open", lambda *_, **__: pytest.fail("was mapped"))
    assert torch.equal(load_checkpoint(path).model.norm.bias, network.norm.bias)


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(4096)])
def test_other_file_type_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        load_checkpoint(path)


def test_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder: pass the file"):
        load_checkpoint(tmp_path)


def test_foreign_safetensors_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"format": "scanline/99"}):
        safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata)
        with pytest.raises(
            CheckpointError, match=r"not a Scanline checkpoint .* `scanline import`"
        ):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "config",
    [
        "", "{", "[]", "null", "3", '"mnist"', "{}", "[" * 100_000, json.dumps({"height": 5}),
        json.dumps(tiny_config().to_dict() | {"height": -1}),
        json.dumps(tiny_config().to_dict() | {"depth": 3}),
        json.dumps(tiny_config().to_dict() | {"classes": 3}),
    ],
    ids=lambda config: config[:50],
)  # fmt: skip
def test_invalid_config_is_rejected(tmp_path: Path, config: str) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, config=config)
    with pytest.raises(CheckpointError, match="has invalid metadata"):
        load_checkpoint(path)


@pytest.mark.parametrize("sizes", [{"d_model": 8192, "d_ff": 65536}, {}], ids=["wide", "deep"])
def test_large_config_sizes_allocate_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """A small file whose config has gigabytes of weights is rejected before allocation."""
    path, network = saved(tmp_path)
    config = network.config.to_dict() | {"n_layers": 256} | sizes
    rewritten(path, config=json.dumps(config))
    monkeypatch.setattr(checkpoint, "LinearTransformer", lambda config: pytest.fail("was made"))
    with pytest.raises(CheckpointError, match="does not fit its config: its layers need"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (torch.float64, 1e300, False),
        (torch.float64, 0.5, True),
        (torch.bfloat16, 0.5, True),
        (torch.float8_e4m3fn, 0.5, True),
    ],
    ids=str,
)
def test_weights_of_other_dtypes_are_read_as_float32(
    tmp_path: Path, dtype: torch.dtype, value: float, fits: bool
) -> None:
    path, network = saved(tmp_path)
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    tensors["norm.bias"] = torch.full_like(tensors["norm.bias"], value, dtype=torch.float64).to(
        dtype
    )
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    safetensors.torch.save_file(tensors, path, metadata)
    if not fits:
        with pytest.raises(CheckpointError, match=r"norm\.bias contains NaN or infinity"):
            load_checkpoint(path)
        return
    bias = load_checkpoint(path).model.norm.bias
    assert bias.dtype == torch.float32
    assert (bias == value).all()


@pytest.mark.parametrize(
    "facts",
    [
        "[]", "3", "{", '{"test": 3}', '{"test": {}}', '{"test_with_label": {"bits_per_dim": "x"}}',
        '{"validation": [3]}', '{"validation": 3}', '{"images_seen": "many"}',
        '{"started_from": "x"}', '{"started_from": {"images_seen": [1]}}',
        '{"held_out": "many"}', "[" * 100_000, f'{{"test": {{"bits_per_dim": 1{"0" * 400}}}}}',
        *(f'{{"test": {{"bits_per_dim": {odd}}}}}' for odd in ("NaN", "Infinity", "1e999", "true")),
        '{"validation": [{"bits_per_dim": -Infinity}]}',
        '{"images_seen": -1}', '{"held_out": -1}', '{"started_from": {"runs": [{"held_out": -1}]}}',
    ],
    ids=lambda facts: facts[:50],
)  # fmt: skip
def test_invalid_facts_are_rejected(tmp_path: Path, facts: str) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, facts=facts)
    with pytest.raises(CheckpointError, match="has invalid metadata"):
        load_checkpoint(path)


def test_missing_config_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, {"format": FORMAT})
    with pytest.raises(CheckpointError, match="has invalid metadata"):
        load_checkpoint(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_rejected(tmp_path: Path, value: float) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors["norm.bias"].__setitem__(3, value))
    with pytest.raises(
        CheckpointError, match=r"norm.bias contains NaN or infinity; train it again"
    ):
        load_checkpoint(path)


def test_default_model_is_found_without_reading_other_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.safetensors", random_network(tiny_config(height=9)), {})
    save_checkpoint(tmp_path / "b.safetensors", random_network(tiny_config()), {})
    rewritten(tmp_path / "a.safetensors", lambda tensors: tensors.pop("norm.bias"))
    assert load_by_name(tmp_path).name == "b"
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        load_checkpoints(tmp_path)


def test_wrong_shape_is_rejected(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors.update({"norm.bias": torch.zeros(17)}))
    with pytest.raises(CheckpointError, match=r"norm.bias has shape \[17\], expected \[16\]"):
        load_checkpoint(path)


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewritten(path, lambda tensors: tensors.update({"extra": tensors.pop("norm.bias")}))
    with pytest.raises(CheckpointError, match=r"missing \['norm.bias'\], unknown \['extra'\]"):
        load_checkpoint(path)


def test_find_and_load_checkpoints_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "a.md").touch()
    assert find_checkpoints(tmp_path) == {n: tmp_path / f"{n}.safetensors" for n in "ab"}
    (tmp_path / "nothing").mkdir()
    for folder, message in (
        ("nothing", r"no .*safetensors in .* `scanline train mnist"),
        ("absent", "there is no folder .*absent"),
        ("a.md/b", "cannot be read: Not a directory"),
    ):
        with pytest.raises(CheckpointError, match=message):
            find_checkpoints(tmp_path / folder)


def test_unreadable_file_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(error: type[OSError]) -> Callable[..., None]:
        def raise_error(*_: object, **__: object) -> None:
            raise error

        return raise_error

    path = tmp_path / "a.safetensors"
    save_checkpoint(path, random_network(tiny_config()), {})
    monkeypatch.setattr(Path, "read_bytes", refuse(PermissionError))
    # safetensors raises this error if permission is denied.
    monkeypatch.setattr("safetensors.safe_open", refuse(FileNotFoundError))
    for read in (load_checkpoint, read_config):
        with pytest.raises(CheckpointError, match="cannot be read: permission denied"):
            read(path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "b.safetensors")


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.safetensors", random_network(tiny_config()), {})
    (tmp_path / "._a.safetensors").write_bytes(b"what macOS puts there")
    assert list(find_checkpoints(tmp_path)) == ["a"]
    with pytest.raises(
        CheckpointError, match=r"is a file: pass its folder, .*, and the model name 'a'"
    ):
        find_checkpoints(tmp_path / "a.safetensors")


def test_default_model_has_the_fewest_steps(tmp_path: Path) -> None:
    for name, sizes in (
        ("a", {"height": 5}), ("b-paper", {"height": 4}), ("b", {"height": 4}),
        ("d", {"height": 2, "channels": 3, "order": "subpixel", "positions": "sinusoidal"}),
    ):  # fmt: skip
        network = random_network(tiny_config(**sizes))
        save_checkpoint(tmp_path / f"{name}.safetensors", network, {})
    assert [c.name for c in load_checkpoints(tmp_path)] == ["b", "b-paper", "a", "d"]
    assert [c.name for c in load_checkpoints(tmp_path, ["b-paper", "b"])] == ["b-paper", "b"]
    with pytest.raises(CheckpointError, match=r"no model 'e' in .*; there are: a, b-paper, b, d"):
        load_checkpoints(tmp_path, ["a", "e"])
    with pytest.raises(CheckpointError, match="'a' is given twice"):
        load_checkpoints(tmp_path, ["a", "b", "a"])
