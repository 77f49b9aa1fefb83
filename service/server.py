"""Server process, from its settings to its exit."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
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

from scanline.kernels.native.build import isa_from_environment
from scanline.kernels.native.training import library
from scanline.service.app import create_app
from scanline.service.http.middleware.body_limit import MAX_BODY_SHARES, caller_body_bytes
from scanline.service.http.protocol.connection import BoundedHttpProtocol
from scanline.service.http.protocol.connection_limiter import ConnectionLimiter
from scanline.service.logs import set_up_logs
from scanline.service.runtime_tuning import tune_interpreter
from scanline.service.settings import Settings
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import EngineFactory, open_engine
from scanline.service.state.reload import ModelReloader
from scanline.service.tracing import start_tracing

log = logging.getLogger("scanline.server")

OTHER_FILES = 128  # open files other than connections and uploads: libraries, checkpoints, …
MIN_CONNECTIONS = 16  # with fewer, health checks and a few browsers would shut out everyone else
SPOOLED_BYTES = 2**20  # an upload of at least this size is kept in a temporary file
FLUSH_SECONDS = 5  # for the last bytes of open streams, once all images are drawn


class DrainingServer(uvicorn.Server):
    """uvicorn server that drains at the first signal.

    Meanwhile its sockets stay open, and ``/readyz`` answers 503.
    """

    def __init__(self, config: uvicorn.Config, app_state: AppState) -> None:
        super().__init__(config)
        self._app_state = app_state
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first SIGTERM, SIGHUP or Ctrl-C; cancel what still runs at the second."""
        # The signal interrupts the event loop anywhere, perhaps while it holds a lock. So this
        # handler takes no lock, not even the log's.
        self._signals += 1
        first = self._signals == 1
        if first:
            # Close each connection after its reply: a connection pool would otherwise send its
            # next request, and every retry, to this server. uvicorn uses the first list now, and
            # rebuilds it from the second every second.
            for headers in (self.server_state.default_headers, self.config.encoded_headers):
                headers.append((b"connection", b"close"))
        args = signal.Signals(sig).name, first
        threading.Thread(target=self._drain, args=args, name="drain", daemon=True).start()

    def _drain(self, name: str, first: bool) -> None:
        seconds = self._app_state.settings.drain_seconds if first else 0.0
        action = f"finishing them within {seconds:g} s" if first else "cancelling them"
        log.info("%s: %s; %s", name, self._app_state.work_summary, action)
        ends = time.monotonic() + seconds
        self._app_state.drain(seconds)
        # The engines have finished, but replies and scores may still be in progress.
        while self.server_state.tasks and time.monotonic() < ends:
            time.sleep(0.02)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Stop also if the models could not be opened, or an engine cannot draw any more."""
        return self._app_state.fatal_error() is not None or await super().on_tick(counter)


def bind_sockets(hosts: list[str], port: int) -> list[socket.socket]:
    """Open listening sockets for all addresses of the hosts, IPv4 and IPv6.

    Args:
        hosts: Names or addresses.
        port: The port; 0 chooses a free one, the same for all addresses.

    Raises:
        ValueError: If no address belongs to this machine, or another program uses one.
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
            bound_port = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(
                    socket.create_server((address[0], bound_port, *address[2:]), family=family)
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                # A host name may also resolve to addresses that this machine does not have.
                reason = os.strerror(error.errno)
    except socket.gaierror as error:
        reason = str(error.strerror)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        hint = "choose another port with --port (SCANLINE_PORT)"
        if error.errno == errno.EADDRINUSE:
            hint += ", or stop the program that listens there"
        while sockets:
            sockets.pop().close()
    if not sockets:
        raise ValueError(f"cannot listen on {', '.join(hosts)}, port {port}: {reason}; {hint}")
    return sockets


def uvicorn_config(app: FastAPI, app_state: AppState, flush: int = FLUSH_SECONDS) -> uvicorn.Config:
    """Return uvicorn's configuration, with our connection limits, logs and headers.

    Args:
        app: The application.
        app_state: Its state, with settings and metrics.
        flush: Seconds that open connections have after the shutdown.
    """
    settings, metrics = app_state.settings, app_state.metrics
    limiter = ConnectionLimiter(
        settings.connection_limits, metrics.connections_closed, metrics.requests, metrics.refused
    )
    metrics.connections.set_function(lambda: limiter.admitted)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=partial(BoundedHttpProtocol, limiter=limiter),  # type: ignore[arg-type]  # no class
        ws="none",
        root_path=settings.root_path,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # floats work
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # ForwardedHeadersMiddleware reads them
        timeout_graceful_shutdown=flush,
    )


def raise_file_limit(connections: int, max_body: int) -> int:
    """Raise the limit on open files as far as the system allows.

    A process without a free file cannot even refuse a connection.

    Args:
        connections: The desired limit on connections.
        max_body: Maximum size of a body in bytes.

    Returns:
        The limit on connections that the open files allow.

    Raises:
        ValueError: If the open files allow too few connections to serve anyone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    uploads = MAX_BODY_SHARES * caller_body_bytes(max_body) // SPOOLED_BYTES
    needed = connections + uploads + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            left = max(soft - OTHER_FILES, 1)
            allowed = left - min(uploads, left // 2)
            if allowed < min(connections, MIN_CONNECTIONS):
                raise ValueError(
                    f"only {soft} files may be open, too few to serve: allow {needed} "
                    "(`ulimit -n`, or LimitNOFILE= in systemd)"
                )
            connections = min(connections, allowed)
            log.warning("only %d files may be open, so at most %d connections", soft, connections)
    return connections


def serve(settings: Settings) -> None:
    """Serve until SIGTERM.

    Raises:
        ValueError: If the server cannot work.
    """
    set_up_logs(settings.log_format, settings.log_level)
    # By default the signal would end the process. The file is standard error.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    isa_from_environment()  # raises if it is wrong, also if only scores will use it
    app_state = AppState(settings, start_tracing())
    reloader = ModelReloader(
        settings, app_state.registry, app_state.serve, app_state.metrics.model_changes
    )
    checkpoints = reloader.load()
    if not settings.cluster:  # replicas read the files of their own machines
        app_state.reloader = reloader
    settings.max_connections = raise_file_limit(
        settings.max_connections, max(settings.max_upload, settings.max_json or 0)
    )
    # Bind first, so that a port in use is reported before models are opened.
    sockets = bind_sockets(settings.hosts, settings.port)
    hosts = [f"[{host}]" if ":" in host else host for host in settings.hosts]
    port = sockets[0].getsockname()[1]
    access = "" if settings.api_keys else "; /v1 requires no key"
    log.info("listening on %s%s", ", ".join(f"http://{host}:{port}" for host in hosts), access)
    with contextlib.ExitStack() as stack:
        for each in sockets:
            stack.enter_context(each)
        opener = stack.enter_context(_engine_opener(settings))

        def open_models() -> None:
            app_state.open(checkpoints, opener)
            tune_interpreter()
            if app_state.ready:  # compile what scores need now, so that no score waits for it
                threading.Thread(target=library.get_library, name="building", daemon=True).start()
            if app_state.ready and settings.watches_weights:
                watch = (settings.watch_seconds, lambda: app_state.draining)
                threading.Thread(
                    target=reloader.watch, args=watch, name="watching", daemon=True
                ).start()

        app = create_app(app_state, open_models)
        server = DrainingServer(uvicorn_config(app, app_state), app_state)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup sets SIG_IGN
            signal.signal(signal.SIGHUP, server.handle_exit)
        server.run(sockets)
    if (app_state.ended_early or reloader.busy) and app_state.failure is None:
        log.info("ended while models were loading")
        logging.shutdown()
        os._exit(0)  # Python cannot exit safely while another thread is inside torch
    if app_state.failure is not None:
        raise ValueError(app_state.failure)


@contextlib.contextmanager
def _engine_opener(settings: Settings) -> Iterator[EngineFactory]:
    """Yield the function that opens a model's engine, local or distributed as the settings say."""
    if not settings.cluster:
        yield open_engine
        return
    try:
        from scanline.service.distributed.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a cluster needs {error.name}: pip install 'scanline-rnn[cluster]'"
        ) from None
    try:
        cluster = RayCluster()
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        hint = "set RAY_ADDRESS to its address, and RAY_AUTH_MODE=token if it requires a token"
        raise ValueError(f"cannot connect to a Ray cluster: {error}; {hint}") from error
    try:
        yield cluster.open
    finally:
        cluster.shutdown()
