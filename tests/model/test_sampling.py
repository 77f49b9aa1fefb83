"""Resolution of sampling options with a model's defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from scanline.model.checkpoint import (
    SamplingDefaults,
)
from scanline.model.decoders.base import InputBatch
from scanline.model.sampling import SamplingError, SamplingOptions, SamplingParams, resolve
from tests.service.fixtures import COLOUR, GREY

PLAIN = SamplingDefaults()
GUIDED = SamplingDefaults(guidance=2.5, top_p=0.9)


@pytest.mark.parametrize(
    ("options", "defaults", "params"),
    [
        ({"label": None}, GUIDED, SamplingParams(label=-1, top_p=0.9)),
        ({"label": "1"}, GUIDED, SamplingParams(label=1, top_p=0.9, guidance=2.5)),
        ({"label": 2}, PLAIN, SamplingParams(label=2)),
        ({"label": "A frog"}, PLAIN, SamplingParams(label=2)),
        (
            {"label": " Random "},
            GUIDED,
            SamplingParams(label=-1, random_label=True, top_p=0.9, guidance=2.5),
        ),
        ({"label": 1, "guidance": 1.0, "top_p": 1.0}, GUIDED, SamplingParams(label=1)),
        (
            {"label": 1, "guidance": 0.0, "particles": 64},
            GUIDED,
            SamplingParams(label=1, top_p=0.9, guidance=0.0, particles=64),
        ),
        ({"label": None, "guidance": 1.0}, GUIDED, SamplingParams(label=-1, top_p=0.9)),
    ],
)
def test_options_are_resolved_with_model_defaults(
    options: dict[str, Any], defaults: SamplingDefaults, params: SamplingParams
) -> None:
    assert resolve(GREY, defaults, SamplingOptions(**options)) == params
    assert params.slots_per_image == params.particles * (1 if params.guidance == 1 else 2)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"label": None, "guidance": 2.0}, "guidance", "needs a label"),
        ({"label": 1, "guidance": 10.5}, "guidance", "0 to 10"),
        ({"label": 1, "guidance": float("nan")}, "guidance", "0 to 10"),
        ({"temperature": -0.1}, "temperature", "0 to 2"),
        ({"temperature": 2.1}, "temperature", "0 to 2"),
        ({"temperature": float("nan")}, "temperature", "0 to 2"),
        ({"label": None, "top_p": 0.0}, "top_p", "above 0"),
        ({"label": None, "top_p": float("nan")}, "top_p", "above 0"),
        ({"label": None, "particles": 65}, "particles", "1 to 64"),
        ({"label": "a toad"}, "label", "there are zero, one, a frog"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(SamplingError, match=message) as refused:
        resolve(GREY, PLAIN, SamplingOptions(**options))
    assert refused.value.param == param


def test_model_without_classes_refuses_labels_and_guidance() -> None:
    with pytest.raises(SamplingError, match="classes") as refused:
        resolve(COLOUR, PLAIN, SamplingOptions(label="random"))
    assert refused.value.param == "label"
    with pytest.raises(SamplingError, match="classes") as refused:
        resolve(COLOUR, PLAIN, SamplingOptions(guidance=2.0))
    assert refused.value.param == "guidance"


def test_write_to_sets_every_input_with_the_name_of_an_option() -> None:
    inputs, untouched = InputBatch.empty(GREY, 2), InputBatch.empty(GREY, 1)
    names = [field.name for field in fields(SamplingParams) if hasattr(inputs, field.name)]
    values: dict[str, Any] = {name: 2 + k for k, name in enumerate(names)}
    params = SamplingParams(**values)
    params.write_to(inputs, 1, params.label)
    for name, value in values.items():
        column, default = getattr(inputs, name), getattr(untouched, name)[0]
        assert (column[0], column[1]) == (default, value), name
        assert value != default
