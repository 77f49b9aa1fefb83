"""Tests of a server process's start and of its startup errors."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from scanline.service.cli.main import main
from scanline.service.server import DrainingServer, bind_sockets, raise_file_limit
from scanline.service.settings import Settings
from tests.service.fixtures import GREY, logs_kept, save_tiny, until
from tests.service.server.server_process import COMMAND, environment, serving


def test_a_server_logs_its_port_watches_its_folder_and_dumps_its_stacks(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    save_tiny(folder, "first", GREY)
    with subprocess.Popen(
        [*COMMAND, "--port", "0"],
        env=environment(folder, backend="reference", watch_seconds=0.1),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        log = ""

        def read_until(pattern: str) -> re.Match[str]:
            nonlocal log
            while (found := re.search(pattern, log)) is None:
                line = process.stderr.readline()  # type: ignore[union-attr]
                assert line, log
                log += line
            return found

        try:
            url = read_until(r"listening on (http://127\.0\.0\.1:\d+)")[1]
            with httpx.Client(base_url=url, timeout=60) as client:

                def names() -> list[str]:
                    return [model["id"] for model in client.get("/v1/models").json()["data"]]

                until(lambda: client.get("/readyz").status_code == 200, "the first model")
                assert names() == ["first"]
                save_tiny(folder, "second", GREY)
                until(lambda: names() == ["first", "second"], "the second model")
                process.send_signal(signal.SIGUSR1)
                read_until("most recent call first")
                assert client.get("/livez").text == "ok\n"
            process.terminate()
            process.stderr.read()
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode == 0


@pytest.mark.usefixtures("default_sighup")
def test_a_signal_during_startup_ends_the_server() -> None:
    """The first process of a container has no default signal handlers."""
    code = """
import os, signal, sys, time
import scanline.service.server as server
from scanline.service.cli.main import main
for which in (signal.SIGTERM, signal.SIGHUP):
    if os.fork() == 0:  # importing everything takes seconds
        server.ModelReloader.load = lambda *_: (os.kill(os.getpid(), which), time.sleep(60))
        main(["serve", "--port", "0"])
    if status := os.wait()[1]:
        sys.exit(f"{which!r}: {status}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sighup_stays_ignored_and_the_log_level_is_set(
    weights: Path, monkeypatch: pytest.MonkeyPatch, default_sighup: None
) -> None:
    """Under nohup, a closed terminal must not end the server."""
    found: list[object] = []

    def run(self: DrainingServer, sockets: list[socket.socket]) -> None:
        found[:] = signal.getsignal(signal.SIGHUP), logging.root.level

    monkeypatch.setattr(DrainingServer, "run", run)
    for name, value in environment(weights, backend="reference").items():
        monkeypatch.setenv(name, value)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with logs_kept(), pytest.raises(SystemExit, match=r"^0$"):
        main(["serve", "--port", "0", "--log-level", "warning"])
    assert found == [signal.SIG_IGN, logging.WARNING]


@pytest.fixture
def start_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], default_sighup: None
) -> Iterator[Callable[..., str]]:
    """Return a function that starts a server that must fail, and returns its only output."""

    def start(folder: Path, *arguments: str, **settings: object) -> str:
        for name, value in environment(folder, **{"port": 0} | settings).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit, match=r"^1$"):
            main(["serve", *arguments])
        output, error = capsys.readouterr()
        assert "Traceback" not in error
        assert output == ""
        return error

    with logs_kept():
        yield start


def test_a_fatal_error_is_logged_in_the_chosen_format(
    tmp_path: Path, start_error: Callable[..., str]
) -> None:
    absent = tmp_path / "absent"
    (line,) = map(json.loads, start_error(absent, log_format="json").splitlines())
    assert line["level"] == "critical"
    assert "there is no folder" in line["message"]
    said = start_error(absent, log_format="json", slots="many", port=-1)
    (line,) = map(json.loads, said.splitlines())
    assert line["message"].startswith("SCANLINE_PORT: Input should be greater")
    assert "SCANLINE_SLOTS: Input should be a valid integer" in line["message"]


def test_the_limit_on_open_files_limits_connections(weights: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited = ["sh", "-c", 'ulimit -n 200 && exec "$0" "$@"', *COMMAND]
    with serving(weights, tmp_path / "log", limited) as server, contextlib.ExitStack() as stack:
        for _ in range(300):  # idle, and more than there are files
            stack.enter_context(socket.create_connection(server.address))
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/samples", json={"model": "tiny"}).status_code == 200
        server.terminate()
        log = server.wait_for_exit()
    assert "only 200 files may be open, so at most 36 connections" in log
    assert "all 36 connections are taken" in log
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_an_unlimited_number_of_open_files_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    any_number, told = resource.RLIM_INFINITY, list[object]()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (any_number, any_number))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: told.append(limit))
    assert (raise_file_limit(10_000, 2**20), told) == (10_000, [])


def test_too_few_open_files_stop_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: None)
    with pytest.raises(ValueError, match=r"only 100 files .* allow \d+ \(`ulimit -n`, or Limit"):
        raise_file_limit(2000, 2**20)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (170, 170))
    assert raise_file_limit(2000, 2**20) == 21
    assert raise_file_limit(4, 2**20) == 4  # as the settings say


def test_an_unknown_instruction_set_stops_the_server(
    weights: Path, start_error: Callable[..., str]
) -> None:
    said = start_error(weights, backend="auto", isa="avx512_bf16")
    assert "scanline: SCANLINE_ISA must be one of " in said
    assert "portable on this CPU, not 'avx512_bf16'" in said


def test_a_port_in_use_stops_the_server_before_models_load(
    weights: Path, start_error: Callable[..., str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = start_error(weights, "--port", port, backend="reference")
    (line,) = said.splitlines()
    assert line.startswith(f"scanline: cannot listen on 127.0.0.1, port {port}: Address already")
    assert "--port" in line
    with pytest.raises(ValueError, match=r"name an address of .* with --host \(SCANLINE_HOST\)"):
        bind_sockets(["203.0.113.7"], 0)


def test_a_server_listens_on_all_existing_addresses_with_one_port() -> None:
    hosts = Settings(host="127.0.0.1, 203.0.113.7,127.0.0.2,").hosts
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(one) for one in bind_sockets(hosts, 0)]
        places = [one.getsockname() for one in found]
        assert [host for host, _ in places] == ["127.0.0.1", "127.0.0.2"]
        assert len({port for _, port in places}) == 1
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(one) for one in bind_sockets(["127.0.0.1"] * 2, 0)]
        assert len(found) == 1


def test_an_unsupported_backend_stops_the_server_with_an_error(
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start_error: Callable[..., str],
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = start_error(weights, backend="native", cache=tmp_path)
    assert "no-such-compiler" in said
    assert "install g++" in said
