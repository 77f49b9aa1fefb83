"""File with API keys."""

from __future__ import annotations

from pathlib import Path


def read_api_keys(file: Path) -> list[str]:
    """Return the keys of a file, which are separated by lines or commas.

    Raises:
        ValueError: The file cannot be read or contains no key. A server without keys would be open
            to anyone.
    """
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("cannot be read: it is not text in UTF-8") from error
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    keys = [key.strip() for key in text.replace("\n", ",").split(",") if key.strip()]
    if not keys:
        raise ValueError("contains no key")
    return keys
