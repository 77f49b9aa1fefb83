"""The server as its own process: start-up, overload, clients that leave, and the way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from scanline.service.serving import listen, room_for_connections
from scanline.service.settings import Settings
from tests.events import parse_sse, rebuild
from tests.processes import free_port, wait_ready
from tests.service_fixtures import GREY, check_error, decode_png, save_tiny, until

SLOW = replace(GREY, height=40, width=40)  # seconds an image, so that there is a middle to be in


@dataclass
class Running:
    """A server process, a client of it, and what it logged."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def gauge(self, name: str, model: str) -> float:
        text = self.client.get("/metrics").text
        found = re.search(rf'^{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def idle(self) -> bool:
        return all(
            self.gauge(f"scanline_{what}_images", model) == 0
            for what in ("running", "waiting") for model in ("slow", "tiny")
        )  # fmt: skip

    def terminate(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)

    def ended(self) -> str:
        """Wait for the end, which must be a clean one, and give the log."""
        assert self.process.wait(60) == 0
        log = self.log.read_text()
        assert "Traceback" not in log, log
        return log


def environment(folder: Path, **settings: object) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SCANLINE_")}
    given = {f"SCANLINE_{k.upper()}": str(v) for k, v in settings.items()}
    return clean | {"SCANLINE_WEIGHTS": str(folder), "OMP_NUM_THREADS": "1"} | given


LIMITED = 'ulimit -n 200 && exec "$0" "$@"'
COMMAND = [sys.executable, "-m", "scanline.service", "serve"]


@contextlib.contextmanager
def serving(folder: Path, log: Path, **settings: object) -> Iterator[Running]:
    port = free_port()
    given: dict[str, object] = {
        "backend": "reference",
        "slots": 8,
        "max_waiting": 40,
        "max_images": 40,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port)],
            env=environment(folder, **given | settings),
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, said=log.read_text)
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Running(process, client, url, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_tiny(folder, "slow", SLOW)
    save_tiny(folder, "tiny", GREY)
    return folder


@pytest.fixture(scope="module")
def shared(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(weights, log, grace_seconds=0.2, log_format="json") as server:
        yield server
        until(server.idle)
        with socket.create_connection(server.address):  # it ends with connections open, too
            server.process.send_signal(signal.SIGINT)
            server.ended()


def test_port_0_takes_a_free_one_and_names_it(weights: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--port", "0"],
        env=environment(weights, backend="reference"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        while (found := re.search(r"listening on (http://127\.0\.0\.1:\d+)", said)) is None:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert httpx.get(f"{found[1]}/livez", timeout=60).text == "ok\n"
        process.terminate()
        process.stderr.read()
    assert process.returncode == 0


@pytest.mark.parametrize("which", ["SIGTERM", "SIGHUP"])
def test_one_that_is_told_to_end_as_it_starts_does(which: str) -> None:
    """The first process of a container would not hear of it, and be killed a while later."""
    code = f"""
import os, signal, time
import scanline.service.serving as serving
from scanline.service.commands.cli import main
serving.load_checkpoints = lambda *_: (os.kill(os.getpid(), signal.{which}), time.sleep(60))
main(["serve"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_why_a_server_ends_is_logged_as_all_else(tmp_path: Path) -> None:
    absent = environment(tmp_path / "absent", log_format="json")
    done = subprocess.run(COMMAND, env=absent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "critical"
    assert "there is no folder" in line["message"]
    wrong = absent | {"SCANLINE_SLOTS": "many", "SCANLINE_PORT": "-1"}
    done = subprocess.run(COMMAND, env=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["message"].startswith("SCANLINE_PORT: Input should be greater")
    assert "SCANLINE_SLOTS: Input should be a valid integer" in line["message"]


def test_models_come_from_the_folder_and_draw(shared: Running) -> None:
    names = [m["id"] for m in shared.client.get("/v1/models").json()["data"]]
    assert names == ["tiny", "slow"]  # the default, of the fewest steps, first
    body = {"model": "tiny", "n": 2, "seed": 3}
    first, second = (shared.client.post("/v1/samples", json=body).json() for _ in range(2))
    assert [i["png"] for i in first["images"]] == [i["png"] for i in second["images"]]
    stream = shared.client.post("/v1/samples", json=body | {"stream": True})
    events = parse_sse(stream.content)
    drawn = rebuild(events, GREY)
    single = shared.client.post(
        "/v1/samples", json=body | {"n": 1}, headers={"Accept": "image/png"}
    )
    np.testing.assert_array_equal(drawn[0], decode_png(single.content, GREY))


def test_a_thousand_requests_at_once_end_in_200_or_429(shared: Running) -> None:
    body = json.dumps({"model": "tiny", "n": 4}).encode()
    head = (
        "POST /v1/samples HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def ask() -> httpx.Response:
        reader, writer = await asyncio.open_connection(*shared.address)
        writer.write(head.encode() + body)
        raw = await reader.read()
        writer.close()
        top, _, content = raw.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        headers = [tuple(line.split(": ", 1)) for line in lines]
        return httpx.Response(int(status.split()[1]), headers=headers, content=content)  # type: ignore[arg-type]

    async def ask_all() -> list[httpx.Response]:
        return await asyncio.gather(*(ask() for _ in range(1000)))

    replies = asyncio.run(ask_all())
    assert {r.status_code for r in replies} == {200, 429}
    for reply in replies:
        if reply.status_code == 200:
            assert [i["finish_reason"] for i in reply.json()["images"]] == ["length"] * 4
        else:
            check_error(reply, 429, "queue_full")
            assert 1 <= int(reply.headers["retry-after"]) <= 120
    until(shared.idle)
    assert shared.client.post("/v1/samples", json={"model": "tiny"}).status_code == 200


def test_clients_that_leave_free_their_slots(shared: Running) -> None:
    async def leave(stream: bool) -> None:
        body = {"model": "slow", "n": 20, "stream": stream}
        async with httpx.AsyncClient(base_url=shared.url, timeout=60) as client:
            asking = asyncio.create_task(client.post("/v1/samples", json=body))
            full = lambda: shared.gauge("scanline_running_images", "slow") == 8  # noqa: E731
            await asyncio.to_thread(until, full, "full slots")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    for stream in (False, True):
        asyncio.run(leave(stream))
        until(shared.idle, "free slots")
    # And one that stays on the line, but never reads, then goes.
    request = b'{"model": "slow", "n": 20, "stream": true, "granularity": "pixel"}'
    head = (
        "POST /v1/samples HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(request)}\r\n\r\n"
    )
    with socket.create_connection(shared.address) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        mute.sendall(head.encode() + request)
        until(lambda: shared.gauge("scanline_running_images", "slow") == 8)
        other = shared.client.post("/v1/samples", json={"model": "tiny"})
        assert other.status_code == 200
    until(shared.idle, "free slots")


def test_a_hundred_megabytes_over_the_wire(shared: Running) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1_000_000

    for headers in ({"Content-Length": str(10**8)}, {}):
        reply = shared.client.post(
            "/v1/samples", content=parts(), headers=headers | {"Content-Type": "application/json"}
        )
        check_error(reply, 413, "too_large")
    assert shared.client.post("/v1/samples", json={"model": "tiny"}).status_code == 200


def test_connections_that_are_no_http_do_no_harm(shared: Running) -> None:
    cut_short = b"POST /v1/samples HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"
    endless = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000
    for junk in (b"\0\xff" * 100, b"GET", cut_short, endless):
        with socket.create_connection(shared.address) as connection:
            connection.sendall(junk)
    assert shared.client.get("/readyz").status_code == 200


def test_sigterm_finishes_what_runs_then_exits_0(weights: Path, tmp_path: Path) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=60) as server,
        ThreadPoolExecutor(2) as pool,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 2, "seed": 7, "stream": True}
        ) as stream,
    ):
        body = {"model": "slow", "n": 1, "seed": 7}
        plain = pool.submit(server.client.post, "/v1/samples", json=body)
        until(lambda: server.gauge("scanline_running_images", "slow") == 3)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            other.get("/livez")
            server.terminate()
            until(lambda: other.get("/readyz").status_code == 503, "draining")
            replies: list[httpx.Response] = []

            def refused() -> bool:
                replies.append(other.post("/v1/samples", json={"model": "tiny"}))
                return replies[-1].status_code != 200

            until(refused)
            check_error(replies[-1], 503, "closing")
            assert int(replies[-1].headers["retry-after"]) >= 1
            assert other.get("/livez").status_code == 200
        events = parse_sse(stream.read())
        assert events[-1].name == "completed"
        images = plain.result().json()["images"]
        assert images[0]["finish_reason"] == "length"
        same = [e.data for e in events if e.name == "image" and e.data["index"] == 0]
        assert same[0]["png"] == images[0]["png"]
        log = server.ended()
    assert "SIGTERM: 3 images run, 0 wait; finishing them within 60 s" in log
    assert "cut off" not in log


def test_sigterm_cuts_off_what_takes_too_long_and_exits_0(weights: Path, tmp_path: Path) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=0.3) as server,
        ThreadPoolExecutor(2) as pool,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 20, "stream": True}
        ) as stream,
    ):
        until(lambda: server.gauge("scanline_running_images", "slow") == 8)  # or it is refused
        plain = pool.submit(server.client.post, "/v1/samples", json={"model": "slow", "n": 20})
        until(lambda: server.gauge("scanline_waiting_images", "slow") == 32)
        server.terminate()
        events = parse_sse(stream.read())
        assert events[-1].name == "error"
        assert "shutting down" in events[-1].data["error"]["message"]
        assert events[-1].data["error"]["code"] == "closing"
        assert {e.data["finish_reason"] for e in events if e.name == "image"} == {"error"}
        check_error(plain.result(), 503, "closing")
        assert int(plain.result().headers["retry-after"]) >= 1
        log = server.ended()
    assert "slow: 40 images of 2 requests are cut off" in log


def test_a_second_signal_cuts_off_what_still_runs(weights: Path, tmp_path: Path) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=3600) as server,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 40, "stream": True}
        ) as stream,
    ):
        until(lambda: server.gauge("scanline_running_images", "slow") == 8)
        server.terminate(signal.SIGHUP)  # as where its terminal closes
        until(lambda: server.client.get("/readyz").status_code == 503)
        server.terminate()
        events = parse_sse(stream.read())
        assert events[-1].name == "error"
        assert events[-1].data["error"]["code"] == "closing"
        server.ended()


def test_sigterm_ends_what_still_compiles(weights: Path, tmp_path: Path) -> None:
    """Or the container's grace would pass, and SIGKILL end it."""
    slow, log = tmp_path / "c++", tmp_path / "log"
    slow.write_text("#!/bin/sh\ntouch $0.began\nexec sleep 600\n")
    slow.chmod(0o755)
    port = free_port()
    given = {"backend": "native", "cache": tmp_path / "cache"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port)],
            env=environment(weights, **given) | {"CXX": str(slow)},
            stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        until(Path(f"{slow}.began").exists)
        assert httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 503
        process.terminate()
        assert process.wait(60) == 0
        assert "ended while the models were loading" in log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the compiler that is left, too
        process.wait()


def fails(folder: Path, *arguments: str, **settings: object) -> str:
    """Start a server that must not start: a status, a sentence, no traceback."""
    ended = subprocess.run(
        [*COMMAND, "--port", "0", *arguments], env=environment(folder, **settings),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    return ended.stderr


def test_open_files_bound_the_connections(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(sys.modules[__name__], "COMMAND", ["sh", "-c", LIMITED, *COMMAND])
    with serving(weights, tmp_path / "log") as server, contextlib.ExitStack() as stack:
        for _ in range(300):  # silent ones, more than there are files
            stack.enter_context(socket.create_connection(server.address))
        with httpx.Client(base_url=server.url, timeout=60) as innocent:
            assert innocent.post("/v1/samples", json={"model": "tiny"}).status_code == 200
        server.terminate()
        log = server.ended()
    assert "only 200 files may be open, so at most 36 connections" in log
    assert "all 36 connections are taken" in log
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_where_any_number_of_files_may_be_open_it_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    any_number, told = resource.RLIM_INFINITY, list[object]()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (any_number, any_number))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: told.append(limit))
    assert (room_for_connections(10_000, 2**20), told) == (10_000, [])


def test_a_port_in_use_is_one_error_and_nothing_is_ever_ready(weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = fails(weights, "--port", port, backend="reference")
    (line,) = said.splitlines()
    assert line.startswith(f"scanline: cannot listen on 127.0.0.1, port {port}: Address already")
    assert "--port" in line
    with pytest.raises(ValueError, match=r"name an address of .* with --host \(SCANLINE_HOST\)"):
        listen(["203.0.113.7"], 0)


def test_a_server_listens_on_every_address_that_is_there_at_one_port() -> None:
    hosts = Settings(host="127.0.0.1, 203.0.113.7,127.0.0.2,").hosts
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(one) for one in listen(hosts, 0)]
        places = [one.getsockname() for one in found]
        assert [host for host, _ in places] == ["127.0.0.1", "127.0.0.2"]
        assert len({port for _, port in places}) == 1
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(one) for one in listen(["127.0.0.1"] * 2, 0)]
        assert len(found) == 1


def test_a_backend_that_cannot_run_ends_the_server_in_words(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = fails(weights, backend="native", cache=tmp_path)
    assert "no-such-compiler" in said
    assert "install g++" in said
