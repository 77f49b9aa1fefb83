"""ASGI application: routes, middleware, health checks and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.middleware.cors import CORSMiddleware

from scanline.service import __version__
from scanline.service.api import (
    cached_png,
    drawing,
    generations,
    models,
    scoring,
    verification,
)
from scanline.service.errors import add_exception_handlers
from scanline.service.http.errors import ErrorReply, not_ready
from scanline.service.http.middleware.access_log import AccessLogMiddleware
from scanline.service.http.middleware.api_key import ApiKeyMiddleware
from scanline.service.http.middleware.body_limit import BodyLimitMiddleware
from scanline.service.http.middleware.csrf import CSRFMiddleware
from scanline.service.http.middleware.forwarded_headers import ForwardedHeadersMiddleware
from scanline.service.http.middleware.head import HeadMiddleware
from scanline.service.http.middleware.security_headers import SecurityHeadersMiddleware
from scanline.service.http.middleware.server_errors import ServerErrorMiddleware
from scanline.service.metrics import CONTENT_TYPE
from scanline.service.openai.routes import router as openai_router
from scanline.service.openapi_schema import customize_openapi
from scanline.service.state.app_state import AppState
from scanline.service.tracing import TracingMiddleware
from scanline.service.web.og_image import router as og_image_router
from scanline.service.web.pages import add_pages

QUIET_PATHS = ("/livez", "/readyz", "/metrics")  # excluded from the log and the traces by default
LOADING_JOIN_SECONDS = 1.0  # how long a stopping server waits for models that are still loading

DESCRIPTION = (
    "Draws small images pixel by pixel with a linear transformer that runs as an RNN. Images are "
    "drawn in raster order: each pixel is conditioned on the pixels before it (above it, and to "
    "its left). Known pixels further down are kept, but guide the pixels above them only through "
    "the `particles` of a completion."
)


def create_app(app_state: AppState, open_models: Callable[[], None]) -> FastAPI:
    """Create the application.

    Args:
        app_state: State that the routes share.
        open_models: Function that opens the models; it runs in a thread while the application
            already answers. The application does not wait for it when it ends.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A daemon thread, because asyncio would wait for one of its own, which may be compiling.
        loading = threading.Thread(target=open_models, name="loading", daemon=True)
        loading.start()
        try:
            yield
        finally:
            await asyncio.to_thread(loading.join, LOADING_JOIN_SECONDS)
            app_state.ended_early = loading.is_alive()
            if not app_state.draining:  # otherwise the engines have ended, or a step of one hangs
                # If one engine has failed, the server ends at once, and no client could read what
                # the other engines would still draw.
                seconds = None if app_state.failure is None else 0.0
                await asyncio.to_thread(app_state.drain, seconds)
            if app_state.tracing is not None:
                await asyncio.to_thread(app_state.tracing.shutdown)

    app = FastAPI(
        title="Scanline", version=__version__, description=DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # add_pages adds them
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # a redirect would go to any Host that a client sends
    )  # fmt: skip
    app.state.scanline = app_state
    for module in (drawing, generations, models, cached_png, scoring, verification):
        app.include_router(module.router)
    app.include_router(openai_router)
    app.include_router(og_image_router)
    _add_operations(app, app_state)
    add_pages(app, app_state.settings.frame_ancestors)
    add_exception_handlers(app)
    _add_middleware(app, app_state)
    settings = app_state.settings
    customize_openapi(app, has_key=bool(settings.api_keys), max_images=settings.max_images)
    return app


def _add_middleware(app: FastAPI, app_state: AppState) -> None:
    """Add the middleware, the innermost first."""
    settings, metrics = app_state.settings, app_state.metrics
    app.add_middleware(HeadMiddleware)
    app.add_middleware(ServerErrorMiddleware)
    app.add_middleware(
        BodyLimitMiddleware, max_form=settings.max_upload, max_other=lambda: app_state.max_json
    )
    if settings.api_keys:
        app.add_middleware(ApiKeyMiddleware, keys=settings.api_keys)
    else:  # with keys there is no need: browsers do not send them by themselves
        app.add_middleware(CSRFMiddleware, origins=settings.cors_origins)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[
                "X-Request-ID",
                "X-Generation-ID",
                "X-Seed",
                "Retry-After",
                "Location",
                "ETag",
                "Preference-Applied",
            ],
        )
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(
        AccessLogMiddleware,
        requests=metrics.requests,
        seconds=metrics.request_seconds,
        errors=metrics.refused,
        quiet_paths=QUIET_PATHS,
    )
    if app_state.tracing is not None:
        app.add_middleware(TracingMiddleware, tracing=app_state.tracing, quiet_paths=QUIET_PATHS)
    if settings.trusted_proxies:
        app.add_middleware(ForwardedHeadersMiddleware, trusted=list(settings.trusted_proxies))


def _add_operations(app: FastAPI, app_state: AppState) -> None:
    """Add the routes for operators."""

    @app.get(
        "/livez",
        tags=["operations"],
        response_class=PlainTextResponse,
        responses={503: {"description": "The process must be restarted.", "model": ErrorReply}},
    )
    async def livez() -> str:
        """Check that the process answers and that no engine is stuck."""
        for engine in app_state.registry.engines:  # also those of replaced models
            if engine.stuck:
                raise not_ready(f"the engine of {engine.name} is stuck: restart the server")
        return "ok\n"

    @app.get(
        "/readyz",
        tags=["operations"],
        response_class=PlainTextResponse,
        responses={503: {"description": "Loading or shutting down.", "model": ErrorReply}},
    )
    async def readyz() -> str:
        """Check that requests are accepted: models are loaded and the server is not draining.

        The reply has a further line for each model that draws slowly.
        """
        if app_state.draining:
            raise not_ready("not ready: shutting down")
        if not app_state.ready:
            raise not_ready("not ready: the models are loading")
        dead = [name for name, loaded in app_state.models.items() if not loaded.engine.alive]
        if dead:
            raise not_ready(f"not ready: no engine of {' and '.join(dead)} is running")
        slow = [name for name, loaded in app_state.models.items() if loaded.engine.slow]
        return "".join(["ready\n", *(f"{name} draws slowly: see the log\n" for name in slow)])

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Return metrics in Prometheus's text format."""
        # In a thread, because it takes milliseconds.
        text = await app_state.encode_pool.run_for(request, app_state.metrics.render)
        return Response(text, media_type=CONTENT_TYPE)
