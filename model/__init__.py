"""The network, its decoders, its data and its training; ``draw``, ``complete`` and ``score``."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["complete", "draw", "score"]

if TYPE_CHECKING:
    from scanline.model.api import complete, draw, score
else:  # hidden from type checkers, because with __getattr__ they would accept any name

    def __getattr__(name: str) -> object:
        """Import the API on first use, so that ``scanline.model.config`` needs no torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from scanline.model import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
