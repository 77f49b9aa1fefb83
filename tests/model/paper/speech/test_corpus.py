"""Tests of reading corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.data.download import DataError
from scanline.model.paper.speech.corpus import read_corpus
from tests.model.paper.speech.fixtures import write_speech


def test_corpus_is_read_with_normalized_features(tmp_path: Path) -> None:
    folder = write_speech(tmp_path / "speech")
    (folder / "train" / "notes.md").write_text("ignored")
    corpus = read_corpus(folder, 2)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (24, 4, 8)
    assert corpus.features == 4
    assert corpus.phonemes == ["a", "b", "c", "d"]
    frames = torch.cat([utterance.features for utterance in corpus.train])
    assert frames.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(frames.var(0), torch.ones(4), rtol=1e-2, atol=0)
    texts = sorted((folder / "test").glob("*.txt"))
    for utterance, text in zip(corpus.test, texts, strict=True):
        assert [corpus.phonemes[i - 1] for i in utterance.phonemes] == text.read_text().split()
        raised = utterance.features[::4].argmax(1) + 1
        assert raised.tolist() == utterance.phonemes


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("train/0.txt", None, r"0\.npy has no 0\.txt beside it"),
        ("test/1.npy", None, r"1\.txt has no 1\.npy beside it"),
        ("train/0.txt", b" \n", "has no phonemes"),
        ("train/0.txt", b"\xff\xfe", "not UTF-8"),
        ("train/0.txt", b"a a a a a a", r"steps of 2, but its 6 phonemes need 11"),
        ("train/0.npy", b"nothing", "not an array written by numpy.save"),
        ("train/0.npy", np.zeros(5, np.float32), r"must be floating-point features \[frames,"),
        ("train/0.npy", np.zeros((40, 4), np.int64), "must be floating-point features"),
        ("train/0.npy", np.zeros((0, 4), np.float32), "is empty"),
        ("train/0.npy", np.full((40, 4), np.nan), "not finite"),
        ("test/0.npy", np.zeros((40, 5)), r"0\.npy has 5 .* has 4|has 4 .* has 5"),
    ],
)  # fmt: skip
def test_malformed_corpus_is_rejected(name: str, content: Any, error: str, tmp_path: Path) -> None:
    folder = write_speech(tmp_path / "speech", 2, 2)
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        np.save(folder / name, content)
    with pytest.raises(DataError, match=error):
        read_corpus(folder, 2)


def test_corpus_without_splits_or_utterances_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*train: a corpus has the folders"):
        read_corpus(tmp_path, 1)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="holds no utterances"):
        read_corpus(tmp_path, 1)
