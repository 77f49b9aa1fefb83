"""One server process, from its settings to its exit."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from scanline.kernels.native.training import library
from scanline.model.checkpoint import load_checkpoints
from scanline.service.app import create_app
from scanline.service.http.middleware.body_limit import MAX_BODY_SHARES, caller_body_bytes
from scanline.service.http.protocol.connection import BoundedHttpProtocol
from scanline.service.http.protocol.connection_limiter import ConnectionLimiter
from scanline.service.logs import set_up_logs
from scanline.service.runtime_tuning import tune_interpreter
from scanline.service.settings import Settings
from scanline.service.state import AppState, EngineFactory, open_engine

log = logging.getLogger("scanline.server")

OTHER_FILES = 128  # open beside connections and uploads: libraries, checkpoints, refusals
UPLOAD_BYTES = 2**20  # the least that is kept in a file
FLUSH_SECONDS = 5  # for the last bytes of open streams, once everything is drawn


class DrainingServer(uvicorn.Server):
    """uvicorn, but SIGTERM drains first: sockets stay open and ``/readyz`` says 503 meanwhile."""

    def __init__(self, config: uvicorn.Config, app_state: AppState) -> None:
        super().__init__(config)
        self._app_state = app_state
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first SIGTERM, SIGHUP or Ctrl-C; at the second, cut off what still runs."""
        self._signals += 1
        first = self._signals == 1
        seconds = None if first else 0.0
        within = f"within {self._app_state.settings.drain_seconds:g} s"
        doing = f"finishing them {within}" if first else "cutting them off"
        log.info("%s: %s; %s", signal.Signals(sig).name, self._app_state.work_summary, doing)
        threading.Thread(target=self._drain, args=(seconds,), name="drain", daemon=True).start()

    def _drain(self, seconds: float | None) -> None:
        ends = time.monotonic() + (self._app_state.settings.drain_seconds if seconds is None else 0)
        self._app_state.drain(seconds)
        # The engines are done; replies may still be on their way, and scores are no engine's.
        while self.server_state.tasks and time.monotonic() < ends:
            time.sleep(0.02)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Stop too where the models could not be opened, or one can draw no more."""
        return self._app_state.fatal_error() is not None or await super().on_tick(counter)


def bind_sockets(hosts: list[str], port: int) -> list[socket.socket]:
    """Open the sockets of addresses, one for each family that a name has.

    Raises ``ValueError`` where none of them is of this machine, or another program has one.
    """
    sockets: list[socket.socket] = []
    reason = "no such address"
    hint = "name an address of this machine with --host (SCANLINE_HOST)"
    try:
        found = [
            (family, address)
            for host in hosts
            for family, *_, address in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        ]
        for family, address in dict.fromkeys(found):
            # Port 0 takes a free one, the same for all.
            taken = sockets[0].getsockname()[1] if sockets else port
            try:
                place = (address[0], taken, *address[2:])
                sockets.append(socket.create_server(place, family=family))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                reason = os.strerror(error.errno)  # a name may have an address that is not there
    except socket.gaierror as error:
        reason = str(error.strerror)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        hint = "choose another port with --port (SCANLINE_PORT)"
        hint += ", or end what listens there" if error.errno == errno.EADDRINUSE else ""
        while sockets:
            sockets.pop().close()
    if not sockets:
        raise ValueError(f"cannot listen on {', '.join(hosts)}, port {port}: {reason}; {hint}")
    return sockets


def uvicorn_config(app: FastAPI, app_state: AppState, flush: int = FLUSH_SECONDS) -> uvicorn.Config:
    """Say how uvicorn serves: connections bounded by the settings, logs and headers ours."""
    settings, metrics = app_state.settings, app_state.metrics
    limiter = ConnectionLimiter(
        settings.connection_limits, metrics.connections_closed, metrics.requests, metrics.refused
    )
    metrics.connections.set_function(lambda: limiter.admitted)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=partial(BoundedHttpProtocol, limiter=limiter),  # type: ignore[arg-type]  # it is called like a class
        ws="none",
        root_path=settings.root_path,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # as any timer
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=flush,
    )


def raise_file_limit(wanted: int, upload: int) -> int:
    """Raise the limit on open files, so far as it may be, and say how many connections it allows.

    Where the system has no file left, nobody at all can connect, and nothing can tell them so.
    ``upload`` is how large a body may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    uploads = MAX_BODY_SHARES * caller_body_bytes(upload) // UPLOAD_BYTES
    needed = wanted + uploads + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            left = max(soft - OTHER_FILES, 1)
            wanted = min(wanted, left - min(uploads, left // 2))
            log.warning("only %d files may be open, so at most %d connections", soft, wanted)
    return wanted


def serve(settings: Settings) -> None:
    """Serve until SIGTERM; raises ``ValueError`` on whatever keeps a server from working."""
    set_up_logs(settings.log_format, settings.log_level)
    if settings.api_key is None and "SCANLINE_API_KEY" in os.environ:
        log.warning("SCANLINE_API_KEY is empty: anyone may call /v1")
    checkpoints = load_checkpoints(settings.weights, settings.models)
    app_state = AppState(settings)
    settings.max_connections = raise_file_limit(
        settings.max_connections, max(settings.max_upload, settings.max_json or 0)
    )
    sockets = bind_sockets(
        settings.hosts, settings.port
    )  # before anything is opened, or said to be
    hosts = [f"[{host}]" if ":" in host else host for host in settings.hosts]
    port = sockets[0].getsockname()[1]
    log.info("listening on %s", ", ".join(f"http://{host}:{port}" for host in hosts))
    with contextlib.ExitStack() as open_:
        for each in sockets:
            open_.enter_context(each)
        opening = open_.enter_context(_engine_opener(settings))

        def open_models() -> None:
            app_state.open(checkpoints, opening)
            tune_interpreter()
            if app_state.ready:  # what scores need is built now, or the first would wait for it
                threading.Thread(target=library.is_available, name="building", daemon=True).start()

        app = create_app(app_state, open_models)
        process = DrainingServer(uvicorn_config(app, app_state), app_state)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, process.handle_exit)
        process.run(sockets)
    if app_state.ended_early and app_state.failure is None:
        log.info("ended while the models were loading")
        logging.shutdown()
        os._exit(0)  # an interpreter's end is not safe with a thread inside torch
    if app_state.failure is not None:
        raise ValueError(app_state.failure)


@contextlib.contextmanager
def _engine_opener(settings: Settings) -> Iterator[EngineFactory]:
    """Say how models are opened: as engines of this process, or as replicas of a cluster."""
    if not settings.cluster:
        yield open_engine
        return
    try:
        from scanline.service.distributed.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        raise ValueError(f"a cluster needs {error.name}: pip install -e '.[cluster]'") from None
    try:
        cluster = RayCluster()
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        hint = "RAY_ADDRESS says where it is, and RAY_AUTH_MODE=token sends Ray's token if it asks"
        raise ValueError(f"there is no Ray cluster to draw in: {error}; {hint}") from error
    try:
        yield cluster.open
    finally:
        cluster.shutdown()
