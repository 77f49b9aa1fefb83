"""Request paths."""

from __future__ import annotations

from starlette.types import Scope


def root_path(scope: Scope) -> str:
    """Return the service's root path, which differs from the ``root_path`` inside a mount."""
    path: str = scope.get("app_root_path", scope.get("root_path", ""))
    return path


def route_path(scope: Scope) -> str:
    """Return the request's path relative to the service's root path, as routes match it."""
    path: str = scope["path"]
    return path.removeprefix(root_path(scope))
