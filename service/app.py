"""The web application: routes put together, errors in one shape, health, metrics and the page."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from scanline.service import __version__
from scanline.service.api.cached_png import router as file_router
from scanline.service.api.routes import router
from scanline.service.api.scoring import router as score_router
from scanline.service.http.bodies import describe_json_error
from scanline.service.http.errors import (
    DOMAIN_ERRORS,
    ApiError,
    ErrorReply,
    describe_validation_errors,
    not_ready,
    to_api_error,
)
from scanline.service.http.middleware.access_log import AccessLogMiddleware
from scanline.service.http.middleware.api_key import ApiKeyMiddleware
from scanline.service.http.middleware.body_limit import BodyLimitMiddleware
from scanline.service.http.middleware.connection_close import ConnectionCloseMiddleware
from scanline.service.http.middleware.cors import CORSMiddleware
from scanline.service.http.middleware.csrf import CSRFMiddleware
from scanline.service.http.middleware.head import HeadMiddleware
from scanline.service.http.middleware.security_headers import SecurityHeadersMiddleware
from scanline.service.http.middleware.server_errors import ServerErrorMiddleware
from scanline.service.http.waiting import ClientDisconnectedError, watch_client
from scanline.service.metrics import CONTENT_TYPE
from scanline.service.openai.routes import router as openai_router
from scanline.service.openapi_schema import customize_openapi
from scanline.service.state import AppState
from scanline.service.web.og_image import router as card_router
from scanline.service.web.pages import DOCS_STATIC, add_pages

log = logging.getLogger("scanline.http")

LOADED_SECONDS = 1.0  # for the models to be opened after all, once the server ends

DESCRIPTION = (
    "Draws small images pixel by pixel with a linear transformer run as an RNN. An image is drawn "
    "in raster order: each pixel is conditioned on the pixels before it (above, and to its left), "
    "so known pixels further down are kept, but guide what is drawn above them only through the "
    "`particles` of a completion."
)


def create_app(app_state: AppState, open_models: Callable[[], None]) -> FastAPI:
    """Build the application; ``open_models`` runs beside it at start-up until it is ready.

    One that is told to end before that leaves it to itself.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # No thread of the loop's own: it would be waited for, and it may be compiling.
        loading = threading.Thread(target=open_models, name="loading", daemon=True)
        loading.start()
        try:
            yield
        finally:
            await asyncio.to_thread(loading.join, LOADED_SECONDS)
            app_state.ended_early = loading.is_alive()
            # Where one model can draw no more, nobody can be told of what others still draw.
            await asyncio.to_thread(app_state.drain, None if app_state.failure is None else 0.0)

    app = FastAPIOffline(  # whose /docs needs no CDN
        title="Scanline", version=__version__, description=DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None, static_url=DOCS_STATIC,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # it would redirect to whatever Host was sent
    )  # fmt: skip
    app.state.scanline = app_state
    app.include_router(router)
    app.include_router(file_router)
    app.include_router(score_router)
    app.include_router(openai_router)
    app.include_router(card_router)
    _add_operations(app, app_state)
    add_pages(app, app_state.settings.frame_ancestors)
    _add_errors(app)
    settings = app_state.settings
    app.add_middleware(HeadMiddleware)  # the first one added is the innermost
    app.add_middleware(ServerErrorMiddleware)
    app.add_middleware(
        BodyLimitMiddleware, upload=settings.max_upload, other=lambda: app_state.max_json
    )
    if settings.api_keys:
        app.add_middleware(ApiKeyMiddleware, keys=settings.api_keys)
    else:  # a key no browser sends by itself
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
    app.add_middleware(ConnectionCloseMiddleware, closing=lambda: app_state.draining)
    app.add_middleware(AccessLogMiddleware, metrics=app_state.metrics)
    customize_openapi(app, has_key=bool(settings.api_keys), max_images=settings.max_images)
    return app


def _add_operations(app: FastAPI, app_state: AppState) -> None:
    @app.get(
        "/livez",
        tags=["operations"],
        response_class=PlainTextResponse,
        responses={503: {"description": "To be started again.", "model": ErrorReply}},
    )
    async def livez() -> str:
        """Say that the process answers, and that what draws does not hang."""
        for name, loaded in app_state.models.items():
            if loaded.engine.stuck:
                raise not_ready(f"what draws {name} hangs: start the server again")
        return "ok\n"

    @app.get(
        "/readyz",
        tags=["operations"],
        response_class=PlainTextResponse,
        responses={503: {"description": "Loading, or shutting down.", "model": ErrorReply}},
    )
    async def readyz() -> str:
        """Say whether requests are taken: not while models load, nor while draining."""
        if app_state.draining:
            raise not_ready("not ready: shutting down")
        if not app_state.ready:
            raise not_ready("not ready: the models are loading")
        silent = [name for name, loaded in app_state.models.items() if not loaded.engine.alive]
        if silent:
            raise not_ready(f"not ready: nothing draws {' and '.join(silent)} now")
        return "ready\n"

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Give metrics in Prometheus's text format."""
        async with watch_client(request) as client:  # they take milliseconds
            text = await app_state.encode_pool.run(client, app_state.metrics.render)
        return Response(text, media_type=CONTENT_TYPE)


def _methods(request: Request) -> set[str]:
    """Give every method that the path takes: a route knows only its own."""
    methods: set[str] = set()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        scope = dict(request.scope) | {"method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            methods.add(method)
    return methods | {"HEAD"} if "GET" in methods else methods


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        param, code = getattr(error, "param", None), getattr(error, "code", None)
        message, docs = str(error.detail), f"{request.scope.get('root_path', '')}/docs"
        if isinstance(error.__cause__, ClientDisconnect):  # while FastAPI read the body
            return await on_gone(request, error)
        if isinstance(error.__cause__, OSError):  # a full disk is no fault of the form
            raise error.__cause__
        if error.status_code == 400 and not isinstance(error, ApiError):  # of reading a body
            if "form" in request.headers.get("content-type", ""):
                what = message.rstrip(".") if error.__cause__ is None else "what came is no form"
                message = (
                    f"the form cannot be read ({what}); send it as multipart/form-data, pictures "
                    "as files"
                )
                code = "form_invalid"
            elif error.__cause__ is not None:  # FastAPI says no more
                message, code = describe_json_error(error.__cause__), "json_invalid"
        if not isinstance(error, ApiError) and error.status_code == 404:
            message = f"there is nothing at {request.url.path}; {docs} lists what there is"
        if not isinstance(error, ApiError) and error.status_code == 405:
            message = f"{request.url.path} does not take {request.method}; see {docs}"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        status = error.status_code
        return ApiError(status, message, param=param, code=code, headers=headers).response

    async def on_refusal(request: Request, error: Exception) -> Response:
        return await on_http_error(request, to_api_error(error))

    for kind in DOMAIN_ERRORS:
        app.add_exception_handler(kind, on_refusal)

    async def on_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # which nobody reads but the log

    for kind in (ClientDisconnectedError, ClientDisconnect):
        app.add_exception_handler(kind, on_gone)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        message, param, code = describe_validation_errors(error.errors())
        return ApiError(400, message, param=param, code=code).response
