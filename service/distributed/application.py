"""Ray Serve application of the whole service, for Ray Serve's config files; its proxy listens."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.model.checkpoint import Checkpoint, load_checkpoints
from scanline.service.app import create_app
from scanline.service.distributed.deployment import explicit_settings, make_deployment
from scanline.service.distributed.ray_client import connect_engine
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.logs import set_up_logs
from scanline.service.metrics import ModelMetrics
from scanline.service.settings import LISTENER_SETTINGS, Settings
from scanline.service.state.app_state import AppState
from scanline.service.tracing import start_tracing

log = logging.getLogger("scanline.cluster")

MAX_ONGOING_REQUESTS = 100_000  # the service enforces its own limits


class Frontend:
    """FastAPI application that runs as a Ray Serve deployment.

    Args:
        settings: Settings, by field name.
        models: Deployment handle of each model.
    """

    def __init__(self, settings: dict[str, Any], models: dict[str, DeploymentHandle]) -> None:
        self._settings, self._models = Settings(**settings), models

    def __serve_build_asgi_app__(self) -> FastAPI:  # Ray Serve's name
        """Create the FastAPI application, with engines that draw on replicas."""
        settings = self._settings
        set_up_logs(settings.log_format, settings.log_level)
        checkpoints = load_checkpoints(settings.weights, list(self._models))
        self._app_state = app_state = AppState(settings, start_tracing())
        app = create_app(app_state, lambda: app_state.open(checkpoints, self._open))
        app.add_middleware(_RayProxyHeaders)
        return app

    def check_health(self) -> None:
        """Raise ``RuntimeError`` if a model cannot be opened or cannot draw any more.

        Ray Serve calls this, and restarts the frontend if it raises.
        """
        if failure := self._app_state.fatal_error():
            raise RuntimeError(failure)

    def _open(
        self, checkpoint: Checkpoint, settings: Settings, metrics: ModelMetrics
    ) -> EngineProtocol:
        return connect_engine(checkpoint, self._models[checkpoint.name], settings, metrics)


class _RayProxyHeaders:
    """Adapt headers to Ray Serve's proxy.

    The proxy leaves blanks behind a request's header, which ``BoundedHttpProtocol`` removes. It
    adds ``X-Request-ID`` to each reply, so that the service's own header is removed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["X-Request-ID"]
            await send(message)

        if scope["type"] == "http":
            scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self.app(scope, receive, send_without)


def build(arguments: dict[str, Any]) -> Any:
    """Build the application; a Ray Serve config names this function as its ``import_path``.

    There is one frontend, because it holds the generations: a second one would not find them.

    Args:
        arguments: Settings, by field name of ``Settings`` (the config's ``args``).

    Raises:
        ValueError: An argument is not a setting, has no effect here, or is invalid.
    """
    settings = _settings(arguments)
    checkpoints = load_checkpoints(settings.weights, settings.models)
    models = {one.name: make_deployment(one, settings) for one in checkpoints}
    frontend = serve.deployment(
        serve.ingress()(Frontend),
        name="frontend",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        # Run on the head node, which is never scaled down, because the frontend holds the images.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        graceful_shutdown_timeout_s=settings.drain_seconds + 5,
    )
    return frontend.bind(explicit_settings(settings, keep_key=True), models)


def _settings(arguments: dict[str, Any]) -> Settings:
    # Empty ones count as left out, as empty environment variables do.
    arguments = {name: value for name, value in arguments.items() if value != ""}
    elsewhere = sorted(set(arguments) & LISTENER_SETTINGS)
    if elsewhere:
        raise ValueError(
            f"args: {', '.join(elsewhere)}: no effect, because Ray Serve's proxy listens, "
            "not Scanline; remove it, and use the config's http_options for the proxy"
        )
    if not arguments.get("cluster", True):
        raise ValueError(
            "args: cluster: a Ray Serve application always draws on replicas; remove it"
        )
    settings = Settings(**arguments | {"cluster": True})
    # A container image sets host and port in any case.
    unused = settings.model_fields_set & LISTENER_SETTINGS - {"host", "port"}
    if unused:
        names = ", ".join(f"SCANLINE_{name.upper()}" for name in sorted(unused))
        log.warning("%s: no effect, because Ray Serve's proxy listens; use http_options", names)
    return settings
