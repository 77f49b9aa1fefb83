"""Options that several commands share."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from scanline.model.sampling import SamplingOptions
from scanline.service.cli.draw import complete, sample
from scanline.service.cli.options import check_compatible


def test_the_commands_that_draw_have_every_sampling_option() -> None:
    defaults = {field.name: field.default for field in fields(SamplingOptions)}
    for command in (sample, complete):
        parameters = inspect.signature(command).parameters
        found = {name: one.default for name, one in parameters.items() if name in defaults}
        assert {"particles": defaults["particles"]} | found == defaults


def test_incompatible_options_are_refused() -> None:
    given = ["--a", "--c", "--mode"]
    check_compatible("--mode x", given, "--a", "--c")
    with pytest.raises(ValueError, match=r"^--c: not allowed with --mode x, which takes --a, --b$"):
        check_compatible("--mode x", given, "--a", "--b")
