"""Parsing of prompts: the name of a class, with the usual words around it."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Mapping

from scanline.model.config import ModelConfig
from scanline.model.noise import RANDOM
from scanline.service.http.errors import ApiError

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_WORDS_BEFORE = {
    "a", "an", "the", "draw", "paint", "sketch", "generate", "create", "make", "give", "show", "me",
    "us", "please", "handwritten", "written", "digit", "number", "numeral", "figure", "picture",
    "image", "photo", "photograph", "drawing", "painting", "of",
}  # fmt: skip
_WORDS_AFTER = {"please", "digit", "number", "numeral"}


def parse_prompt(prompt: str, models: Mapping[str, ModelConfig]) -> tuple[str, int | str | None]:
    """Return the model and the label that a prompt names.

    A prompt names a class of any model, exactly, up to punctuation, or up to case, or a digit as a
    word ("draw a seven"), with or without the usual words around it. It may also be the number of
    a class of the first model.

    Args:
        prompt: The prompt.
        models: The configs of the models, the default first.

    Returns:
        The model's name and the label: a class index, "random", or None for an empty prompt. The
        model is the first one that has the class; the default for "random" and an empty prompt.

    Raises:
        ApiError: If no model has such a class.
    """
    default = next(iter(models))
    candidates = list(_candidates(prompt))
    for name, config in models.items():
        for candidate in (prompt.strip(), *candidates):
            if candidate in config.classes:
                return name, config.classes.index(candidate)
    if not candidates[0]:
        return default, None
    normalized = {name: [_normalize(c) for c in config.classes] for name, config in models.items()}
    for name, classes in normalized.items():
        for candidate in candidates:
            if candidate and classes.count(candidate) == 1:
                return name, classes.index(candidate)
    for name, classes in normalized.items():
        lowercase = [one.lower() for one in classes]
        for candidate in map(str.lower, candidates):
            if candidate and lowercase.count(candidate) == 1:
                return name, lowercase.index(candidate)
            if candidate in _DIGITS and (digit := str(_DIGITS.index(candidate))) in lowercase:
                return name, lowercase.index(digit)
    config = models[default]
    with contextlib.suppress(ValueError):
        return default, config.class_index(candidates[0])
    if candidates[0].lower() == RANDOM and config.classes:
        return default, RANDOM
    known = {name: ", ".join(one.classes) for name, one in models.items() if one.classes}
    advice = "leave it empty"
    if known:
        lists = "; ".join(f"{name}: {classes}" for name, classes in known.items())
        advice = f"name one class ({lists}), or leave it empty for no particular class"
    raise ApiError(
        400,
        f"prompt: the models do not understand sentences; {advice}",
        param="prompt",
        code="unknown_class",
    )


def _candidates(prompt: str) -> Iterator[str]:
    """Yield the prompt, and what remains as the usual words are removed one by one."""
    words = _normalize(prompt).split()
    yield " ".join(words)
    while words and words[-1].lower() in _WORDS_AFTER:
        words.pop()
        yield " ".join(words)
    while words and words[0].lower() in _WORDS_BEFORE:
        words.pop(0)
        yield " ".join(words)


def _normalize(text: str) -> str:
    """Replace punctuation and runs of blanks by one blank, and compose characters (NFC)."""
    return " ".join(re.sub(r"[\s\"'“”‘’.!?:,]+", " ", unicodedata.normalize("NFC", text)).split())
