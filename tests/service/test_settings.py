"""Tests of settings from the environment and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from scanline.model.checkpoint import SHIPPED_WEIGHTS
from scanline.service.cli.main import main
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.http.protocol.connection_limiter import ConnectionLimits
from scanline.service.settings import Settings
from tests.service.fixtures import (
    logs_kept,
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SCANLINE_{name.upper()}", raising=False)
    # An empty folder, so that a wrongly accepted setting ends the server too, with another error.
    monkeypatch.setenv("SCANLINE_WEIGHTS", str(tmp_path))
    with logs_kept():
        yield


def test_every_field_is_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {
        "host": "0.0.0.0", "port": "9000", "root_path": "/a/b/",
        "weights": str(tmp_path), "models": "b, a,",
        "backend": "reference", "slots": "7", "threads": "2", "max_images": "5",
        "max_waiting": "6", "max_upload": "2048", "keep_finished": "0", "keep_seconds": "1.5",
        "grace_seconds": "0", "drain_seconds": "2", "api_key": "secret", "api_key_file": "",
        "cors_origins": "https://a.example", "log_format": "json", "log_level": "debug",
        "frame_ancestors": "https://a.example, 'self'",
        "max_json": "1024", "max_headers": "4096", "max_connections": "12", "header_seconds": "1",
        "body_seconds": "2", "send_seconds": "3", "keep_alive_seconds": "4",
        "max_images_per_caller": "9", "pixels_per_minute": "10",
        "trusted_proxies": "10.0.0.0/8, ::1",
        "cluster": "true", "min_replicas": "2", "max_replicas": "3", "max_replicas_per_node": "2",
        "replica_images": "40",
        "replica_cpus": "0.5", "replica_gpus": "0.25", "scale_up_seconds": "1",
        "scale_down_seconds": "2", "png_metadata": "false", "watch_seconds": "0",
    }  # fmt: skip
    assert set(given) == set(Settings.model_fields)
    for name, value in given.items():
        monkeypatch.setenv(f"SCANLINE_{name.upper()}", value)
    settings = Settings()
    assert settings.models == ("b", "a")
    assert settings.weights == tmp_path
    assert settings.cors_origins == ("https://a.example",)
    assert Settings(trusted_proxies="10.0.0.1,*").trusted_proxies == ("*",)  # type: ignore[arg-type]
    assert settings.frame_ancestors == ("https://a.example", "'self'")
    assert settings.root_path == "/a/b"
    assert settings.queue_limits.max_waiting == 6
    assert settings.queue_limits.keep_finished == 0
    assert settings.queue_limits.keep_seconds == 1.5
    assert settings.queue_limits.grace == 0
    assert settings.connection_limits == ConnectionLimits(
        header_bytes=4096, header_seconds=1, body_seconds=2, send_seconds=3, connections=12
    )
    assert (settings.cluster, settings.min_replicas, settings.max_replicas) == (True, 2, 3)
    assert "secret" not in repr(settings)
    assert Settings(slots=9).slots == 9  # the command line overrides the environment


WRONG = {
    "port": ["-1", "65536", "http"],
    "root_path": ["pictures", "/a//b", "http://a.example/b", "/a b", "/é"],
    "backend": ["cpu"],
    "slots": ["0", "-3", "many", "1.5", "100000"],
    "threads": ["0"],
    "max_images": ["0"],
    "max_waiting": ["0", "3"],
    "max_upload": ["10"],
    "max_json": ["10"],
    "max_headers": ["0", "lots"],
    "max_connections": ["0"],
    "header_seconds": ["0", "-1"],
    "body_seconds": ["0"],
    "send_seconds": ["0", "nan"],
    "keep_alive_seconds": ["0"],
    "keep_finished": ["-1", "255"],
    "keep_seconds": ["-1", "nan", "soon", "inf", "1e300"],
    "grace_seconds": ["-0.1"],
    "watch_seconds": ["-1", "inf", "1e10"],
    "replica_cpus": ["0", "inf"],
    "drain_seconds": ["-1", "x", "inf", "1e10"],
    "api_key": ["  "],
    "log_format": ["xml"],
    "log_level": ["loud"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in WRONG.items() for v in vs])
def test_an_invalid_variable_stops_the_server_with_an_error(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"SCANLINE_{name.upper()}", value)
    with pytest.raises(SystemExit) as stop:
        main(["serve"])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("scanline: ")
    assert name in said.lower()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("option", "value"),
    [("--port", "65536"), ("--slots", "0"), ("--backend", "cpu"), ("--max-waiting", "1"),
     ("--drain-seconds", "-1"), ("--log-format", "xml"), ("--log-level", "loud")],
)  # fmt: skip
def test_an_invalid_flag_stops_the_server_with_an_error(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["serve", option, value])
    assert stop.value.code == 1
    name = "max_waiting" if option == "--max-waiting" else option  # it contradicts another setting
    assert name in capsys.readouterr().err


def test_limits_of_queues_and_connections_have_the_same_defaults() -> None:
    assert Settings().queue_limits == QueueLimits()
    assert Settings().connection_limits == ConnectionLimits()


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker Compose passes on an unset variable as an empty one."""
    for name in Settings.model_fields:
        monkeypatch.setenv(f"SCANLINE_{name.upper()}", "")
    settings = Settings()
    assert settings.model_fields_set == set()
    assert (settings.host, settings.weights, settings.api_key) == (
        "127.0.0.1", SHIPPED_WEIGHTS, None
    )  # fmt: skip


@pytest.mark.parametrize("text", ["first\nsecond\n", "first, second", "\r\nfirst\r\n\nsecond"])
def test_api_keys_from_a_file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    monkeypatch.setenv("SCANLINE_API_KEY_FILE", str(file))
    monkeypatch.setenv("SCANLINE_API_KEY", "")  # as Docker Compose sets it
    settings = Settings()
    assert settings.api_keys == ["first", "second"]
    assert "first" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "contains no key"),
        (b" \n,\n", "contains no key"),
        (b"\xff\xfe", "cannot be read: it is not text in UTF-8"),
    ],
)
def test_a_key_file_without_keys_is_refused(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValidationError, match=f"SCANLINE_API_KEY_FILE: {file} {says}"):
        Settings(api_key_file=file)


def test_only_one_source_of_api_keys_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one")
    with pytest.raises(ValidationError, match="SCANLINE_API_KEY or SCANLINE_API_KEY_FILE, not"):
        Settings(api_key="two", api_key_file=tmp_path / "keys")  # type: ignore[arg-type]


@pytest.mark.parametrize("origin", ["http://a.b/", "foo", "https://", "http://a.b/c", "http:a.b"])
def test_an_invalid_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match=r"is not \* or an origin"):
        Settings(cors_origins=("https://good.example:8443", origin))
    good = ("*", "null", "http://localhost:3000", "chrome-extension://abc")
    assert Settings(cors_origins=good).cors_origins == good


def test_the_largest_request_must_fit_the_queue() -> None:
    with pytest.raises(ValidationError, match="max_waiting 10 must be at least max_images 20"):
        Settings(max_waiting=10, max_images=20)


def test_limits_may_equal_the_largest_request() -> None:
    bounds = {"max_images": 7, "max_waiting": 7, "keep_finished": 7, "max_images_per_caller": 7}
    assert Settings(**bounds).model_dump(include=set(bounds)) == bounds  # type: ignore[arg-type]
    for name in bounds.keys() - {"max_images"}:
        with pytest.raises(ValidationError, match=f"{name} 6 must be at least max_images 7"):
            Settings(**bounds | {name: 6})  # type: ignore[arg-type]


def test_max_replicas_must_not_be_below_min_replicas() -> None:
    with pytest.raises(ValidationError, match="max_replicas 1 must be at least min_replicas 2"):
        Settings(cluster=True, min_replicas=2)


def test_cluster_settings_need_a_cluster() -> None:
    with pytest.raises(
        ValidationError,
        match="_MAX_REPLICAS, SCANLINE_REPLICA_GPUS: allowed only with",
    ):
        Settings(max_replicas=3, replica_gpus=1)


def test_invalid_weights_stop_the_server_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["serve", "--weights", str(tmp_path), *arguments])
        assert stop.value.code == 1
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return said

    assert "scanline train" in says()
    (tmp_path / "bad.safetensors").write_bytes(b"not at all")
    assert "damaged" in says()
    assert "there is no model 'other'" in says("--models", "other")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SCANLINE_API_KEYS", "did you mean SCANLINE_API_KEY?"),
        ("SCANLINE_SLOT", "did you mean SCANLINE_SLOTS?"),
        ("scanline_api_kye", "did you mean SCANLINE_API_KEY?"),
        ("SCANLINE_COLOUR_OF_THE_SKY", "docs/operations.md lists all settings"),
    ],
)
def test_an_unknown_variable_stops_the_server_with_a_suggestion(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "secret")
    with pytest.raises(SystemExit) as stop:
        main(["serve"])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert f"{name.upper()} is not a setting; {hint}" in said
    assert "secret" not in said


def test_foreign_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SCANLINE_CACHE", "SCANLINE_CXXFLAGS", "SCANLINE_DATA_DIR",
        "SCANLINE_SERVICE_HOST", "SCANLINE_SERVICE_PORT_HTTP", "SCANLINE_PORT_8000_TCP_ADDR",
        "SCANLINE_PORT_8000_TCP_PORT", "SCANLINE_GPU_SERVICE_PORT",
    ):  # fmt: skip
        monkeypatch.setenv(name, "x")
    # Kubernetes sets these for services named scanline and scanline-gpu.
    for name in ("SCANLINE_PORT", "SCANLINE_GPU_PORT"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:8000")
    assert Settings().port == 8000


def test_a_port_that_is_not_a_service_link_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANLINE_HTTP_PORT", "9000")
    with pytest.raises(ValueError, match="SCANLINE_HTTP_PORT is not a setting"):
        Settings()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"api_key": "a,,b"}, "contains a blank key"),
        ({"trusted_proxies": "nginx"}, "nginx"),
        ({"frame_ancestors": "https://日本.example"}, "日本.example' is not \\* or an origin"),
        ({"frame_ancestors": "https://a.example;script-src *"}, "is not \\* or an origin"),
        ({"max_images": 20, "max_images_per_caller": 10}, "at least max_images 20"),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Settings(**fields)
