"""Request paths."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Return the request's path relative to the service's root path, as routes match it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
