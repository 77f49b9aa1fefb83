"""Runs of the command line in the process of the test."""

from __future__ import annotations

import pytest

from scanline.service.cli.main import main


def run_command(*arguments: object) -> int:
    """Run the command line and return its exit status."""
    with pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    code = exit_info.value.code
    assert isinstance(code, int)
    return code
