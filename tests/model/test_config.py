"""Model config: validation, derived properties and presets."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from typing import Any

import pytest

from scanline.kernels.constants import ATTENTION_KINDS, FEATURE_MAPS, MIXTURES
from scanline.model.config import NEIGHBOURS, PRESETS, ModelConfig
from tests.conftest import tiny_config

SUBPIXEL = {"channels": 3, "order": "subpixel", "positions": "sinusoidal"}


@pytest.mark.parametrize(
    "config",
    [
        *PRESETS.values(),
        tiny_config(classes=("a", "b"), start="given", input="previous"),
        tiny_config(attention="lsh-4", lsh_chunk=29, lsh_combine="mean"),
    ],
    ids=str,
)
def test_json_round_trip(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_default_lsh_options_are_not_stored() -> None:
    """Checkpoints from before these options keep their digests."""
    stored = set(tiny_config(attention="lsh-4").to_dict())
    assert stored == {f.name for f in dataclasses.fields(ModelConfig)} - {
        "lsh_chunk",
        "lsh_combine",
    }
    assert tiny_config(attention="lsh-4", lsh_chunk=29).to_dict()["lsh_chunk"] == 29


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({name: value}, f"{name} must be 1 to")
            for name in ("height", "width", "n_layers", "n_heads", "d_model", "d_ff", "lsh_chunk")
            for value in (0, -3, 10**9)
        ),
        ({"channels": 2}, "channels must be 1 .grey. or 3 .RGB., not 2"),
        ({"channels": 4}, "channels must be 1 .grey. or 3 .RGB., not 4"),
        ({"input": "next"}, "input must be one of previous, neighbourhood, not 'next'"),
        ({"encoding": "both"}, "encoding must be one of table, linear, not 'both'"),
        ({"order": "raster"}, "order must be one of subpixel, pixel, not 'raster'"),
        ({"head": "softmax"}, "head must be one of logistic_mixture, categorical, not 'softmax'"),
        (
            {"attention": "local"},
            f"attention must be one of {', '.join(ATTENTION_KINDS)}, not 'local'",
        ),
        (
            {"feature_map": "sine"},
            f"feature_map must be one of {', '.join(FEATURE_MAPS)}, not 'sine'",
        ),
        ({"norm": ""}, "norm must be one of pre, post, not ''"),
        ({"activation": "silu"}, "activation must be one of gelu, relu, not 'silu'"),
        ({"positions": "rotary"}, "positions must be one of learned, sinusoidal, not 'rotary'"),
        ({"start": "zero"}, "start must be one of learned, given, not 'zero'"),
        ({"d_model": 18, "n_heads": 4}, "d_model 18 is not a multiple of n_heads 4"),
        ({"d_model": 18, "positions": "sinusoidal"}, "sinusoidal positions need .* 4: 18"),
        ({"input": "previous", "channels": 3}, "'previous' sees one value per step: use order"),
        ({"channels": 3}, "'categorical' decides one value per step: use head 'logistic_mixture'"),
        (
            {"channels": 3, "order": "subpixel"},
            "learned positions need one step per pixel: use positions 'sinusoidal'",
        ),
        ({"start": "given"}, "start 'given' needs input 'previous'"),
        (
            {**SUBPIXEL, "short_conv": "2x3"},
            "short_conv needs one step per pixel and norm 'pre': use order 'pixel'",
        ),
        ({"short_conv": "2x3", "norm": "post"}, "short_conv needs one step per pixel and norm"),
        (
            {"start": "given", "input": "previous", "height": 1, "width": 1},
            "leaves nothing to model in images of one value",
        ),
        (
            {"attention": "softmax", "feature_map": "relu"},
            "feature_map needs linear attention; leave it out with 'softmax'",
        ),
        ({"lsh_chunk": 29}, "lsh_chunk needs LSH attention; leave it out with 'linear'"),
        (
            {"attention": "softmax", "lsh_combine": "mean"},
            "lsh_combine needs LSH attention; leave it out with 'softmax'",
        ),
        ({"attention": "lsh-1", "lsh_combine": "sum"}, "lsh_combine must be one of union, mean"),
        ({"attention": "lsh-2"}, "attention must be one of .* lsh-1, lsh-4, lsh-8, not 'lsh-2'"),
        ({"first_value": 256}, "first_value must be 0 to 255, not 256"),
        ({"first_value": -1}, "first_value must be 0 to 255, not -1"),
        ({"classes": ("cat", "cat")}, "class names must be different and not empty"),
        ({"classes": ("cat", "")}, "class names must be different and not empty"),
    ],
    ids=str,
)
def test_invalid_config_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**fields)
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(tiny_config().to_dict() | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": 1, "banana": 2}, "unknown config fields: banana, colour"),
        ({"height": "28"}, "height must be an integer, not '28'"),
        ({"height": 28.0}, "height must be an integer, not 28.0"),
        ({"n_layers": True}, "n_layers must be an integer, not True"),
        ({"d_ff": None}, "d_ff must be an integer, not None"),
        ({"head": 3}, "head must be a string, not 3"),
        ({"head": None}, "head must be a string, not None"),
        ({"classes": "0123"}, "classes must be a list of names, not '0123'"),
        ({"classes": [0, 1]}, "classes must be a list of names"),
        ({"classes": {"a": 1}}, "classes must be a list of names"),
    ],
    ids=str,
)
def test_fields_of_the_wrong_type_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(tiny_config().to_dict() | fields)


def test_missing_size_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"incomplete config: .*'width'"):
        ModelConfig.from_dict({"height": 3})


@pytest.mark.parametrize("fields", [[], ["height"], None, 3, "height"], ids=repr)
def test_non_dictionary_is_rejected(fields: Any) -> None:
    with pytest.raises(ValueError, match="a config must be a dictionary of fields"):
        ModelConfig.from_dict(fields)


@pytest.mark.parametrize(
    ("fields", "steps", "step_channels", "step_draws", "draws", "outputs"),
    [
        ({"head": "categorical"}, 20, 1, 1, 1, 256),
        ({"head": "logistic_mixture"}, 20, 1, 2, 2, 3 * MIXTURES),
        ({"channels": 3, "head": "logistic_mixture"}, 20, 3, 4, 4, 10 * MIXTURES),
        ({**SUBPIXEL, "head": "categorical"}, 60, 1, 1, 3, 256),
        ({**SUBPIXEL, "head": "logistic_mixture"}, 60, 1, 2, 6, 30),
    ],
    ids=str,
)
def test_derived_properties(
    fields: dict[str, Any],
    steps: int,
    step_channels: int,
    step_draws: int,
    draws: int,
    outputs: int,
) -> None:
    config = tiny_config(**fields)
    assert (config.pixels, config.values) == (20, 20 * config.channels)
    assert (config.steps, config.step_channels) == (steps, step_channels)
    assert config.steps_per_pixel * config.pixels == steps
    assert (config.step_draws, config.draws) == (step_draws, draws)
    assert config.head_outputs == outputs
    assert (config.head_size, config.dims) == (8, config.values)


def test_given_first_value_is_not_a_dimension() -> None:
    assert tiny_config(input="previous", start="given").dims == 19


def test_neighbours_are_17_and_causal() -> None:
    assert len(set(NEIGHBOURS)) == 17
    assert all(row < 0 or (row == 0 and column < 0) for row, column in NEIGHBOURS)
    assert {row for row, _ in NEIGHBOURS} == {0, -1, -2}
    assert all(abs(column) <= 3 for _, column in NEIGHBOURS)


@pytest.mark.parametrize(
    ("name", "steps", "layers"), [("mnist-paper", 784, 8), ("cifar10-paper", 3072, 16)]
)
def test_paper_presets_match_the_authors_networks(name: str, steps: int, layers: int) -> None:
    config = PRESETS[name]
    assert (config.steps, config.n_layers, config.n_heads) == (steps, layers, 8)
    assert (config.d_model, config.d_ff, config.head_size) == (256, 1024, 32)


def test_class_index_by_name_or_number() -> None:
    letters = tiny_config(classes=("A", "B", "a", "Frog"))
    assert [letters.class_index(name) for name in ("A", "a", " b ", "frog", "3", 1)] == [
        0, 2, 1, 3, 3, 1,
    ]  # fmt: skip
    accents = tiny_config(classes=("U\u0308n", " cat", "cat"))  # decomposed, as macOS writes it
    assert [accents.class_index(name) for name in ("\u00dcn", "\u00fcn", " cat", "cat")] == [
        0, 0, 1, 2,
    ]  # fmt: skip
    twice = tiny_config(classes=("AB", "ab"))
    assert twice.class_index("ab") == 1
    with pytest.raises(ValueError, match="no class 'Ab'; there are AB, ab, or 0 to 1"):
        twice.class_index("Ab")
    numbers = tiny_config(classes=("1", "10", "2"))
    assert [numbers.class_index(one) for one in ("1", "10", "2", 1)] == [0, 1, 2, 1]
    with pytest.raises(ValueError, match=r"no class '0'; there are 1, 10, 2$"):
        numbers.class_index("0")


def test_long_labels_are_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalisation takes quadratic time in the number of accents."""
    ordered: list[int] = []

    def normalize(form: str, text: str) -> str:
        ordered.append(len(text))
        return text

    monkeypatch.setattr(unicodedata, "normalize", normalize)
    with pytest.raises(ValueError, match="no class"):
        tiny_config(classes=("a",)).class_index("a" + "\u0345\u0334" * 10_000)
    assert max(ordered) == 1  # the class name itself


def test_class_name_must_be_utf8() -> None:
    with pytest.raises(ValueError, match=r"'caf\\udce9' is not valid UTF-8: rename its folder"):
        tiny_config(classes=("tea", "caf\udce9"))
