"""Tests of the interpreter's tuning."""

from __future__ import annotations

import gc
import sys

import pytest

from scanline.service.runtime_tuning import SWITCH_INTERVAL_SECONDS, tune_interpreter


@pytest.mark.usefixtures("restored_interpreter")
def test_existing_objects_are_frozen_and_new_garbage_is_collected() -> None:
    loaded = [{"kept": number} for number in range(100)]
    tune_interpreter()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert gc.get_freeze_count() > len(loaded)
    assert not any(one is loaded for one in gc.get_objects())
    circle: list[object] = []
    circle.append(circle)
    del circle
    assert gc.collect() >= 1
    assert not any(one is loaded for one in gc.get_objects())
