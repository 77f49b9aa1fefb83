"""Paths of requests."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Give the path below the prefix that the service is mounted at, as routes see it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
