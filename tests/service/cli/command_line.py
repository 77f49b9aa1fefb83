"""The command line, run in the test's own process."""

from __future__ import annotations

import pytest

from scanline.service.cli.main import main


def run_command(*arguments: object) -> int:
    """Run the command line, and give its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    code = stop.value.code
    assert isinstance(code, int)
    return code
