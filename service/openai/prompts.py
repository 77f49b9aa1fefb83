"""What a prompt asks for: a class, in the few words that people put around one."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Mapping

from scanline.model.config import ModelConfig
from scanline.service.http.errors import ApiError

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_BEFORE = {
    "a", "an", "the", "draw", "paint", "sketch", "generate", "create", "make", "give", "show", "me",
    "us", "please", "handwritten", "written", "digit", "number", "numeral", "figure", "picture",
    "image", "photo", "photograph", "drawing", "painting", "of",
}  # fmt: skip
_AFTER = {"please", "digit", "number", "numeral"}


def parse_prompt(prompt: str, models: Mapping[str, ModelConfig]) -> tuple[str, int | str | None]:
    """Find the model that a prompt is for, and what it names there; the first for an empty one.

    A class by its name, or a digit's word, with or without what is usually said before it ("draw a
    7"); of the first model alone also a class by number. None for an empty prompt, "random" for
    itself. Raises ``ApiError`` on anything else.
    """
    first = next(iter(models))
    wishes = list(_wishes(prompt))
    named_as = {name: [_plain(one) for one in config.classes] for name, config in models.items()}
    for name, config in models.items():
        for wish in (prompt.strip(), *wishes):
            if wish in config.classes:
                return name, config.classes.index(wish)
    if not wishes[0]:
        return first, None
    for name, classes in named_as.items():
        for wish in wishes:
            if wish and classes.count(wish) == 1:
                return name, classes.index(wish)
    for name, classes in named_as.items():
        classes = [one.lower() for one in classes]
        for wish in map(str.lower, wishes):
            if wish and classes.count(wish) == 1:
                return name, classes.index(wish)
            if wish in _DIGITS and (digit := str(_DIGITS.index(wish))) in classes:
                return name, classes.index(digit)
    config = models[first]
    with contextlib.suppress(ValueError):
        return first, config.class_index(wishes[0])
    if wishes[0].lower() == "random" and config.classes:
        return first, "random"
    known = {name: ", ".join(one.classes) for name, one in models.items() if one.classes}
    lists = "; ".join(f"{name} draws {classes}" for name, classes in known.items())
    what = "leave it empty"
    if known:
        what = f"name one class ({lists}), or leave it empty for anything"
    raise ApiError(
        400,
        f"prompt: no model here understands sentences; {what}",
        param="prompt",
        code="unknown_class",
    )


def _wishes(prompt: str) -> Iterator[str]:
    """Give the prompt, and what is left of it as the words around a class are taken away."""
    words = _plain(prompt).split()
    yield " ".join(words)
    while words and words[-1].lower() in _AFTER:
        words.pop()
        yield " ".join(words)
    while words and words[0].lower() in _BEFORE:
        words.pop(0)
        yield " ".join(words)


def _plain(words: str) -> str:
    """Leave out what stands between words, and write each letter in one way."""
    return " ".join(re.sub(r"[\s\"'“”‘’.!?:,]+", " ", unicodedata.normalize("NFC", words)).split())
