"""Tests of ``scanline bench --http --pretend``."""

from __future__ import annotations

import pytest

from scanline.model.checkpoint import Checkpoint
from scanline.service.bench import http_overhead
from tests.service.fixtures import COLOUR, GREY, tiny_model

pytestmark = pytest.mark.usefixtures("restored_interpreter")

MODELS = [Checkpoint("grey", tiny_model(GREY)), Checkpoint("colour", tiny_model(COLOUR))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(MODELS[0], id="grey"),
        pytest.param(MODELS[1], marks=pytest.mark.broad, id="colour"),
    ],
)
def test_every_reply_format_is_measured(model: Checkpoint) -> None:
    result = http_overhead.measure_http_overhead(model, 20_000, slots=8, seconds=0.1)
    assert [row["form"] for row in result["forms"]] == list(http_overhead.REPLY_FORMATS)
    for row in result["forms"]:
        assert 0 < row["share"] < 1
        assert 0 < row["loop_milliseconds_per_image"] < row["process_milliseconds_per_image"]
    assert len(http_overhead.table(result).splitlines()) == 1 + len(http_overhead.REPLY_FORMATS)


def test_wrong_replies_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_overhead, "to_png", lambda pixels, config: b"another image")
    with pytest.raises(RuntimeError, match="stream, pixel: the reply does not contain"):
        http_overhead.measure_http_overhead(MODELS[0], 20_000, slots=8, seconds=0.1)


def test_failing_clients_end_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        http_overhead, "REPLY_FORMATS", {"words": ("text/event-stream", {"granularity": "word"})}
    )
    monkeypatch.setattr(http_overhead, "_check", lambda server, decoder: None)
    with pytest.raises(RuntimeError, match="a client failed"):
        http_overhead.measure_http_overhead(MODELS[0], 20_000, slots=8, seconds=0.1)
    assert "the server replied b'HTTP/1.1 4" in capfd.readouterr().err
