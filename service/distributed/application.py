"""The whole service as an application of Ray Serve, whose proxies listen: for its config files."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from scanline.model.checkpoint import Checkpoint, load_checkpoints
from scanline.service.app import create_app
from scanline.service.distributed.deployment import explicit_settings, make_deployment
from scanline.service.distributed.ray_client import connect_engine
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.logs import set_up_logs
from scanline.service.metrics import ModelMetrics
from scanline.service.settings import Settings
from scanline.service.state import AppState

log = logging.getLogger("scanline.cluster")

MAX_ONGOING_REQUESTS = 100_000  # it refuses itself what is too much, in its own words
LISTENER_SETTINGS = {
    "host", "port", "max_connections", "max_headers", "header_seconds", "body_seconds",
    "send_seconds", "keep_alive_seconds", "root_path",
}  # fmt: skip


class Frontend:
    """The FastAPI application in a replica of Ray Serve, with the handle of each model."""

    def __init__(self, settings: dict[str, Any], models: dict[str, DeploymentHandle]) -> None:
        self._settings, self._models = Settings(**settings), models

    def __serve_build_asgi_app__(self) -> FastAPI:  # Ray Serve's name
        """Make the application, as for one process but for where images are drawn."""
        settings = self._settings
        set_up_logs(settings.log_format, settings.log_level)
        checkpoints = load_checkpoints(settings.weights, list(self._models))
        self._app_state = app_state = AppState(settings)
        app = create_app(app_state, lambda: app_state.open(checkpoints, self._open))
        app.add_middleware(_DropRequestId)
        if settings.trusted_proxies:  # Ray Serve's listener believes those of its own machine alone
            app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
        return app

    def check_health(self) -> None:
        """Raise ``RuntimeError`` where the models could not be opened, or one can draw no more.

        Ray Serve's hook: it begins the frontend anew then.
        """
        if failure := self._app_state.fatal_error():
            raise RuntimeError(failure)

    def _open(
        self, checkpoint: Checkpoint, settings: Settings, metrics: ModelMetrics
    ) -> EngineProtocol:
        return connect_engine(checkpoint, self._models[checkpoint.name], settings, metrics)


class _DropRequestId:
    """Leave ``X-Request-ID`` to Ray Serve's proxy, which adds the same to each reply."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["X-Request-ID"]
            await send(message)

        await self.app(scope, receive, send_without)


def build(arguments: dict[str, Any]) -> Any:
    """Build the application from settings, named as fields of ``Settings`` (a config's ``args``).

    One frontend: it holds the generations, so a second would not find those of the first.

    Raises:
        ValueError: an argument is no setting, or one that would do nothing here, or wrong.
    """
    settings = _settings(arguments)
    checkpoints = load_checkpoints(settings.weights, settings.models)
    models = {one.name: make_deployment(one, settings) for one in checkpoints}
    frontend = serve.deployment(
        serve.ingress()(Frontend),
        name="frontend",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        # At the head, which is not scaled down: it holds what is drawn.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        graceful_shutdown_timeout_s=settings.drain_seconds + 5,
    )
    return frontend.bind(explicit_settings(settings, keep_key=True), models)


def _settings(arguments: dict[str, Any]) -> Settings:
    elsewhere = sorted(set(arguments) & LISTENER_SETTINGS)
    if elsewhere:
        raise ValueError(
            f"args: {', '.join(elsewhere)}: Ray Serve's proxy listens here, not Scanline; leave it "
            "out, and see the config's http_options for the proxy's own"
        )
    if not arguments.get("cluster", True):
        raise ValueError("args: cluster: an application of Ray Serve always draws on its replicas")
    settings = Settings(**arguments | {"cluster": True})
    # A container image sets these two, for whoever listens in it.
    unused = settings.model_fields_set & LISTENER_SETTINGS - {"host", "port"}
    if unused:
        names = ", ".join(f"SCANLINE_{name.upper()}" for name in sorted(unused))
        log.warning("%s: no effect here, where Ray Serve's proxy listens; see http_options", names)
    return settings
