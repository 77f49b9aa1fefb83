"""Options that several commands share."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from scanline.model.sampling import SamplingOptions
from scanline.service.cli.options import (
    SAMPLING_OPTIONS,
    check_compatible,
    with_sampling_options,
)


def test_sampling_options_have_the_defaults_of_the_dataclass() -> None:
    defaults = {field.name: field.default for field in fields(SamplingOptions)}
    for name, (_, default) in SAMPLING_OPTIONS.items():
        assert default == defaults[name]


def test_a_command_receives_its_sampling_options_as_one_argument() -> None:
    received: list[tuple[int, SamplingOptions]] = []

    @with_sampling_options
    def command(n: int, *, sampling: SamplingOptions) -> None:
        received.append((n, sampling))

    assert list(inspect.signature(command).parameters) == ["n", *SAMPLING_OPTIONS]
    defaults = {name: default for name, (_, default) in SAMPLING_OPTIONS.items()}
    command(n=2, **defaults | {"label": "7", "temperature": 0.5, "guidance": 2.0})
    assert received == [(2, SamplingOptions(label="7", temperature=0.5, guidance=2.0))]


def test_incompatible_options_are_refused() -> None:
    given = {"--a": 1, "--b": None, "--c": 0, "--mode": 2}
    check_compatible("--mode x", given, "--a", "--c")
    with pytest.raises(ValueError, match=r"^--c: not allowed with --mode x, which takes --a, --b$"):
        check_compatible("--mode x", given, "--a", "--b")
