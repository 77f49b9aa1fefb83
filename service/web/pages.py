"""The web page, the API documentation, and their Content-Security-Policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

import fastapi_offline
from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.types import Scope

from scanline.service.http.paths import root_path
from scanline.service.web.og_image import og_tags

STATIC = Path(__file__).parent / "static"
DOCS_STATIC = "/docs/static"

_COMPRESSIBLE = ("text/", "application/javascript", "image/svg")


class PageFiles(StaticFiles):
    """Static files, compressed with gzip, which browsers revalidate before each use."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory)
        self._compressed: dict[tuple[str, float], bytes] = {}  # by path and modification time

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file. It is compressed once, in a thread, for all requests."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Vary"] = "Accept-Encoding"
        media = response.headers.get("content-type", "")
        if not isinstance(response, FileResponse) or not media.startswith(_COMPRESSIBLE):
            return response
        if "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            return response
        modified = response.stat_result.st_mtime if response.stat_result else 0.0
        file = (str(response.path), modified)
        if file not in self._compressed:
            data = await to_thread.run_sync(Path(response.path).read_bytes)
            self._compressed[file] = await to_thread.run_sync(gzip.compress, data)
        kept = ("content-type", "last-modified", "etag", "cache-control", "vary")
        headers = {name: response.headers[name] for name in kept if name in response.headers}
        headers |= {"Content-Encoding": "gzip", "etag": f"W/{headers.get('etag', '')}"}
        return Response(self._compressed[file], headers=headers)


def page_policy(scripts: str, styles: str, frame_ancestors: tuple[str, ...]) -> str:
    """Return a Content-Security-Policy that allows files of this server only.

    Args:
        scripts: Further sources of scripts.
        styles: Further sources of styles.
        frame_ancestors: Origins whose pages may embed the page.
    """
    ancestors = " ".join(frame_ancestors) or "'none'"
    return (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' {styles}; "
        "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors {ancestors}"
    )


def _tagged_page(request: Request) -> Response:
    """Return the page with the tags of its link, compressed. Browsers revalidate it."""
    html = (STATIC / "index.html").read_text("utf-8")
    body = html.replace("</head>", f"{og_tags(request)}</head>", 1).encode()
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding", "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body)
        headers["Content-Encoding"] = "gzip"
    return HTMLResponse(body, headers=headers)


def add_pages(app: FastAPI, frame_ancestors: tuple[str, ...]) -> None:
    """Add the routes of the page, its files, and the API documentation."""
    policy = page_policy("", "", frame_ancestors)
    files = PageFiles(STATIC)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        response = await to_thread.run_sync(_tagged_page, request)
        response.headers["Content-Security-Policy"] = policy
        return response

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = root_path(request.scope)
        reply = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{root}{DOCS_STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{DOCS_STATIC}/swagger-ui.css",
            swagger_favicon_url=f"{root}/static/icon.svg",
        )
        document = bytes(reply.body).decode()
        inline = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
        digests = [hashlib.sha256(script.encode()).digest() for script in inline]
        hashes = [base64.b64encode(digest).decode() for digest in digests]
        scripts = " ".join(f"'sha256-{digest}'" for digest in hashes)
        # Swagger UI sets inline styles.
        policy = page_policy(scripts, "'unsafe-inline'", frame_ancestors)
        style = f'<link rel="stylesheet" href="{root}/static/docs.css">'
        back = f'<p class="back"><a href="{root}/">Back to Scanline</a></p>'
        document = document.replace("</head>", f"{style}</head>", 1)
        document = document.replace("<body>", f"<body>{back}", 1)
        return HTMLResponse(document, headers={"Content-Security-Policy": policy})

    app.mount("/static", files, name="static")
    # The files of Swagger UI, instead of a CDN's.
    app.mount(DOCS_STATIC, PageFiles(Path(fastapi_offline.__file__).parent / "static"))
