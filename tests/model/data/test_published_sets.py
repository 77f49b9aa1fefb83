"""Tests of reading MNIST and CIFAR-10."""

import hashlib
import json
import logging
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanline.model.data.catalog import PUBLISHED, one_of
from scanline.model.data.dataset import Dataset
from scanline.model.data.download import DataError, MissingDataError, find
from scanline.model.data.published_sets import load_dataset
from tests.dataset_files import (
    PACKERS,
    cifar_batch,
    idx,
    mnist_arrays,
    write_archive,
    write_cifar,
    write_mnist,
)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_mnist_is_read_from_every_layout_and_compression(
    tmp_path: Path, suffix: str, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    images, labels = write_mnist(tmp_path / folder, suffix)
    with caplog.at_level(logging.INFO, "scanline.data"):
        dataset = load_dataset("mnist", "train", tmp_path)
    assert "6 records, not the published 60000" in caplog.text
    assert dataset.images.shape == (6, 28, 28, 1)
    np.testing.assert_array_equal(dataset.images[..., 0], images)
    assert dataset.labels is not None
    assert dataset.labels.dtype == np.int64
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.classes == tuple("0123456789")
    assert dataset.note == "6 images that are not the published set"
    assert dataset.images.flags.writeable  # torch.from_numpy warns about read-only arrays


def test_compression_is_detected_and_alternative_spelling_found(tmp_path: Path) -> None:
    images, labels = mnist_arrays()
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(lzma.compress(idx(images)))
    (tmp_path / "t10k-labels.idx1-ubyte.gz").write_bytes(idx(labels))
    assert len(load_dataset("mnist", "test", tmp_path)) == 6


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("folder", ["cifar-10", "cifar10", "cifar-10-batches-bin", "."])
def test_cifar10_is_read_from_every_layout_and_compression(
    tmp_path: Path, suffix: str, folder: str
) -> None:
    images = write_cifar(tmp_path / folder, suffix)
    train = load_dataset("cifar10", "train", tmp_path)
    np.testing.assert_array_equal(train.images, images)  # channels last, batches in order
    assert train.images.flags.c_contiguous
    assert train.note == "25 images that are not the published set"
    assert train.labels is not None
    assert train.labels.tolist() == [(i + seed) % 10 for seed in range(1, 6) for i in range(5)]
    assert train.classes[0] == "airplane"
    assert train.classes[9] == "truck"
    test = load_dataset("cifar10", "test", tmp_path)
    np.testing.assert_array_equal(test.images, cifar_batch()[0])


def test_cifar10_is_read_from_archive(tmp_path: Path) -> None:
    batches = {f"data_batch_{i}.bin": cifar_batch(seed=i)[2] for i in (3, 1, 5, 2, 4)}
    archive = tmp_path / "cifar-10" / "cifar-10-binary.tar.gz"
    write_archive(archive, {"batches.meta.txt": b"airplane\n", **batches})
    train = load_dataset("cifar10", "train", tmp_path)
    np.testing.assert_array_equal(train.images[:5], cifar_batch(seed=1)[0])
    np.testing.assert_array_equal(train.images[20:], cifar_batch(seed=5)[0])
    assert list(archive.parent.iterdir()) == [archive]
    with pytest.raises(DataError, match=r"lacks test_batch\.bin"):
        load_dataset("cifar10", "test", tmp_path)
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("cifar10", "train", tmp_path)


def test_archive_with_damaged_header_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("cifar10", "test", tmp_path)


IMAGES, LABELS = mnist_arrays()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": idx(LABELS)}, "starts with 2049, but this IDX file must start with 2051"),
        ({"images": b""}, "starts with 0, but this IDX file"),
        ({"images": idx(IMAGES)[:10]}, "ends within its header"),
        ({"images": idx(IMAGES)[:-1]}, r"4,719 bytes, but its header requires 4,720"),
        ({"images": idx(IMAGES) + b"\0"}, r"4,721 bytes, but its header requires 4,720"),
        ({"images": idx(IMAGES[:, :20, :24])}, "images of 20×24 pixels, but mnist has 28×28"),
        ({"images": idx(IMAGES[:0]), "labels": idx(LABELS[:0])}, "holds no records"),
        ({"labels": idx(LABELS[:5])}, "5 labels for 6 images"),
        ({"labels": idx(LABELS + np.uint8(5))}, "has a label 10, but labels are 0 to 9"),
    ],
)
def test_wrong_mnist_file_is_rejected(
    tmp_path: Path, changes: dict[str, bytes], message: str
) -> None:
    write_mnist(tmp_path, changes=changes)
    with pytest.raises(DataError, match=message):
        load_dataset("mnist", "test", tmp_path)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_compressed_file_is_rejected(tmp_path: Path, suffix: str, damage: str) -> None:
    write_mnist(tmp_path, suffix)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    with pytest.raises(DataError, match=r"train-images.* is damaged .* Delete it"):
        load_dataset("mnist", "train", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_batch()[2][:-1], "not a multiple of a cifar10 record's 3,073"),
        (b"", "holds no records"),
        (b"\x0a" + bytes(3072), "has a label 10"),
    ],
)
def test_wrong_cifar10_file_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", "test", tmp_path)


def test_wrong_checksum_is_rejected(tmp_path: Path) -> None:
    zeros = np.zeros((10_000, 28, 28), np.uint8)
    write_mnist(tmp_path, changes={"images": idx(zeros), "labels": idx(zeros[:, 0, 0])})
    with pytest.raises(
        DataError,
        match=r"t10k-images.* is not the published mnist file: .* another data set, move it to a "
        "folder of its own; otherwise delete it",
    ):
        load_dataset("mnist", "test", tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(30_730_000))
    with pytest.raises(DataError, match=r"test_batch\.bin is not the published cifar10 file"):
        load_dataset("cifar10", "test", tmp_path)


def test_data_sets_with_files_of_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has checksums and classes of its own."""
    letters = tuple("ABCDEFGHIJ")
    images, labels = mnist_arrays()
    contents = {"images": idx(images), "labels": idx(labels)}
    files = tuple(
        replace(file, records=6, sha256=hashlib.sha256(content).hexdigest())
        for file, content in zip(PUBLISHED["mnist"].splits["test"], contents.values(), strict=True)
    )
    second = replace(
        PUBLISHED["mnist"], name="letters", classes=letters, folders=("letters",),
        splits={"train": files, "test": files},
    )  # fmt: skip
    monkeypatch.setitem(PUBLISHED, "letters", second)
    write_mnist(tmp_path / "mnist", count=4)
    with pytest.raises(MissingDataError, match="no letters test files"):
        load_dataset("letters", "test", tmp_path)
    write_mnist(tmp_path / "letters")
    dataset = load_dataset("letters", "test", tmp_path)
    assert (dataset.name, dataset.classes, dataset.note) == ("letters", letters, "")
    assert len(load_dataset("mnist", "test", tmp_path)) == 4


def test_approximate_records_are_left_out_with_a_note(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    listing = tmp_path / "test_batch.inexact.json"
    listing.write_text(json.dumps({"inexact_records": [3, 1]}))
    test = load_dataset("cifar10", "test", tmp_path)
    images, labels, _ = cifar_batch()
    np.testing.assert_array_equal(test.images, images[[0, 2, 4]])
    assert test.labels is not None
    np.testing.assert_array_equal(test.labels, labels[[0, 2, 4]])
    assert "3 exact test images; 2 approximate ones left out" in test.note
    assert len(load_dataset("cifar10", "train", tmp_path)) == 25


@pytest.mark.parametrize(
    "listing", ["{", "[]", "{}", '{"inexact_records": [5]}', '{"inexact_records": [-1]}',
                '{"inexact_records": ["1"]}', '{"inexact_records": [0, 1, 2, 3, 4]}',
                '{"inexact_records": [1, 1]}'],
)  # fmt: skip
def test_invalid_list_of_approximate_records_is_rejected(tmp_path: Path, listing: str) -> None:
    write_cifar(tmp_path)
    (tmp_path / "test_batch.inexact.json").write_text(listing)
    with pytest.raises(DataError, match=r"test_batch\.inexact\.json"):
        load_dataset("cifar10", "test", tmp_path)


def test_only_the_reconstructed_batch_needs_a_list_of_approximate_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cifar_batch()[2]
    (tmp_path / "test_batch.bin").write_bytes(content)

    def publish(**changes: Any) -> None:
        (file,) = PUBLISHED["cifar10"].splits["test"]
        splits = {"test": (replace(file, records=5, **changes),)}
        monkeypatch.setitem(PUBLISHED, "cifar10", replace(PUBLISHED["cifar10"], splits=splits))

    publish(sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(DataError, match=r"copy their list, test_batch\.inexact\.json, into"):
        load_dataset("cifar10", "test", tmp_path)
    (tmp_path / "test_batch.inexact.json").write_text('{"inexact_records": [1, 3]}')
    dataset = load_dataset("cifar10", "test", tmp_path)
    assert dataset.note == "3 exact test images; 2 approximate ones left out"
    publish(original_md5=hashlib.md5(content, usedforsecurity=False).hexdigest())
    original = load_dataset("cifar10", "test", tmp_path)
    assert (len(original), original.note) == (5, "")


def test_unknown_data_set_or_split_is_rejected() -> None:
    with pytest.raises(DataError, match=f"unknown data set 'imagenet': choose {one_of(PUBLISHED)}"):
        load_dataset("imagenet", "train")
    with pytest.raises(ValueError, match="split must be train or test, not 'validation'"):
        load_dataset("mnist", "validation")


# Real data, if present


def real(name: str, split: str) -> Dataset:
    try:
        return load_dataset(name, split)
    except MissingDataError as error:
        pytest.skip(f"real data absent: {error}")


@pytest.mark.parametrize(("split", "count"), [("train", 60_000), ("test", 10_000)])
def test_real_mnist(split: str, count: int) -> None:
    dataset = real("mnist", split)
    assert dataset.images.shape == (count, 28, 28, 1)
    assert dataset.labels is not None
    assert sorted(set(dataset.labels.tolist())) == list(range(10))
    assert dataset.note == ""


def test_real_cifar_test_batch() -> None:
    dataset = real("cifar10", "test")
    assert dataset.images.shape[1:] == (32, 32, 3)
    assert dataset.labels is not None
    counts = np.bincount(dataset.labels).tolist()
    if dataset.note:  # the copy with approximate records: 22 ships and a horse
        assert dataset.note == "9,977 exact test images; 23 approximate ones left out"
        assert counts == [1000] * 7 + [999, 978, 1000]
    else:
        assert counts == [1000] * 10


def test_real_cifar_training_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10 = PUBLISHED["cifar10"]
    try:
        paths = find(cifar10, "train")
    except MissingDataError as error:
        pytest.skip(f"real data absent: {error}")
    if paths[0].name == cifar10.archive:
        pytest.skip("the archive is read as a whole, which takes too long here")
    first = replace(cifar10, splits={"train": cifar10.splits["train"][:1]})  # all take too long
    monkeypatch.setitem(PUBLISHED, "cifar10", first)
    dataset = load_dataset("cifar10", "train", paths[0].parent)
    assert dataset.images.shape == (10_000, 32, 32, 3)
    assert dataset.labels is not None
    assert dataset.labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert "not the published" not in dataset.note
