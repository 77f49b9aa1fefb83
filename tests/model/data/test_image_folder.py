"""Tests of reading folders of images."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from scanline.model.data.download import DataError
from scanline.model.data.image_folder import load_image_folder
from scanline.service.images import read_image
from tests.conftest import tiny_config
from tests.dataset_files import Bytes


def save(path: Path, values: npt.ArrayLike, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path, **options)  # type: ignore[arg-type]


def flat(value: int, height: int = 4, width: int = 4, channels: int = 3) -> Bytes:
    return np.full((height, width, channels), value, np.uint8)


def test_sub_folders_are_classes_in_order_of_names(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "b.png", flat(20))
    save(tmp_path / "dog" / "a.bmp", flat(10))
    save(tmp_path / "cat" / "deep" / "er" / "x.webp", flat(30), lossless=True)
    save(tmp_path / "cat 2" / "y.GIF", flat(40)[..., 0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not an image")
    save(tmp_path / ".hidden" / "z.png", flat(50))
    save(tmp_path / "__MACOSX" / "dog" / "b.png", flat(60))
    (tmp_path / "dog" / "._b.png").write_bytes(b"what macOS leaves behind")
    dataset = load_image_folder(tmp_path, 4, grey=False)
    assert dataset.name == "images"
    assert dataset.classes == ("cat", "cat 2", "dog")
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [0, 1, 2, 2]
    assert dataset.images[:, 0, 0, 0].tolist() == [30, 40, 10, 20]
    assert dataset.note == ""


def test_folder_without_sub_folders_has_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).integers(0, 256, (4, 6, 3), np.uint8)
    save(tmp_path / "b.png", values)
    save(tmp_path / "a.png", flat(7, 4, 6))
    dataset = load_image_folder(tmp_path, (4, 6), grey=False)
    assert dataset.classes == ()
    assert dataset.labels is None
    np.testing.assert_array_equal(dataset.images[1], values)  # has that size already
    monkeypatch.chdir(tmp_path)
    assert load_image_folder(Path(), (4, 6), grey=False).title == dataset.title == tmp_path.name
    grey = load_image_folder(tmp_path, (4, 6), grey=True).images
    assert grey.shape == (2, 4, 6, 1)
    expected = values @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey[1, ..., 0], expected, atol=1)


def test_images_outside_class_folders_are_rejected(tmp_path: Path) -> None:
    save(tmp_path / "a.png", flat(0))
    save(tmp_path / "cat" / "b.png", flat(0))
    with pytest.raises(DataError, match="holds 1 images outside its sub-folders"):
        load_image_folder(tmp_path, 4, grey=False)


def test_images_are_center_cropped_and_resized(tmp_path: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 200
    save(tmp_path / "wide.png", wide)
    assert load_image_folder(tmp_path, 8, grey=False).images.min() == 200
    save(tmp_path / "wide.png", wide.transpose(1, 0, 2))
    shrunk = load_image_folder(tmp_path, (4, 4), grey=True).images
    assert shrunk.min() > 180  # Lanczos mixes in a little black at the border


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    values = np.zeros((8, 16), np.uint8)
    values[:, 8:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate 90° clockwise
    save(tmp_path / "a.jpg", values, exif=exif, quality=100)
    upright = load_image_folder(tmp_path, (16, 8), grey=True).images[0, ..., 0]
    assert upright[0].max() < 20
    assert upright[-1].min() > 235


@pytest.mark.parametrize("grey", [False, True])
def test_transparent_images_are_composited_on_black(tmp_path: Path, grey: bool) -> None:
    values = flat(100, channels=4)
    values[..., 3] = 255
    values[:2, :, 3] = 0
    values[0, :, 3] = 128
    save(tmp_path / "a.png", values)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 100, 100, 100])
    palette.save(tmp_path / "b.gif", transparency=1)
    first, second = load_image_folder(tmp_path, 4, grey=grey).images
    assert first[3, 0, 0] == 100
    assert first[1, 0, 0] == 0
    assert abs(int(first[0, 0, 0]) - 50) <= 1
    assert second.max() == 0
    config = tiny_config(height=4, width=4, channels=1 if grey else 3, head="logistic_mixture")
    with (tmp_path / "a.png").open("rb") as file:
        uploaded = read_image(file, config, "cover")
    np.testing.assert_array_equal(uploaded.reshape(first.shape), first)


def test_16_bit_images_keep_their_range(tmp_path: Path) -> None:
    for name in ("a.png", "b.tiff"):
        save(tmp_path / name, np.array([[0, 32768], [65535, 255]], np.uint16))
    assert load_image_folder(tmp_path, 2, grey=True).images.ravel().tolist() == 2 * [0, 128, 255, 0]


def test_other_suffixes_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for j, (suffix, kind) in enumerate(
        [("jfif", "JPEG"), ("jpe", "JPEG"), ("pnm", "PPM"), ("pbm", "PPM"), ("PNG", "PNG")]
    ):
        Image.new("1" if suffix == "pbm" else "L", (4, 4), 1).save(tmp_path / f"{j}.{suffix}", kind)
    assert len(load_image_folder(tmp_path, 4, grey=True)) == 5
    assert "skipped" not in caplog.text
    for name in ("a.heic", "b.HEIC", "README", ".DS_Store"):
        (tmp_path / name).touch()
    assert len(load_image_folder(tmp_path, 4, grey=True)) == 5
    assert "3 other files are skipped (no suffix, .heic): save" in caplog.text


def test_unreadable_files_are_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "cat" / "good.png", flat(1))
    save(
        tmp_path / "cat" / "cut.png", np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    )
    cut = (tmp_path / "cat" / "cut.png").read_bytes()
    (tmp_path / "cat" / "cut.png").write_bytes(cut[:1000])
    save(tmp_path / "cat" / "float.tiff", np.zeros((4, 4), np.float32))
    (tmp_path / "cat" / "postscript.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "text.jpg").write_text("hello")
    (tmp_path / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    dataset = load_image_folder(tmp_path, 4, grey=False)
    assert dataset.images.tolist() == flat(1)[None].tolist()
    assert dataset.classes == ("cat",)  # no image of a dog is readable
    assert dataset.note == "5 unreadable files left out"
    for name in (
        "cat/cut.png", "cat/float.tiff", "cat/postscript.png", "dog/text.jpg", "dog/gone.png",
    ):  # fmt: skip
        assert name in caplog.text
    assert " more" not in caplog.text
    (tmp_path / "dog" / "sixth.jpg").write_text("hello")
    load_image_folder(tmp_path, 4, grey=False)
    assert "; and 1 more" in caplog.text


def test_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    Image.new("L", (4, 4), 9).save(tmp_path / "one.png")
    assert len(load_image_folder(tmp_path, 4, True)) == 1


def test_folder_without_readable_images_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        load_image_folder(tmp_path / "absent", 4, grey=False)
    with pytest.raises(DataError, match=r"holds no readable image\. Choose a folder of PNG"):
        load_image_folder(tmp_path, 4, grey=False)
    (tmp_path / "a.png").write_text("hello")
    with pytest.raises(DataError, match=r"no readable image: a\.png"):
        load_image_folder(tmp_path, 4, grey=False)
    with pytest.raises(DataError, match="1 pixel or more; got 0×4"):
        load_image_folder(tmp_path, (0, 4), grey=False)


def test_links_to_parents_and_classes(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "a.png", flat(3))
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(folder)
    dataset = load_image_folder(folder, 4, grey=False)
    assert (len(dataset), dataset.classes) == (1, ("cat",))


def test_folders_of_systems_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("a", "b"):
        save(tmp_path / folder / "1.png", flat(1))
    assert load_image_folder(tmp_path, 4, grey=False).classes == ("a", "b")
    assert not caplog.text
    for folder in (
        "$RECYCLE.BIN/S-1", "lost+found", "a/@eaDir", "a/@eaDir/1.png", "#recycle", "b/#snapshot",
        "System Volume Information", ".Trash-1000", "a/.AppleDouble", "__MACOSX/a", "RECYCLER/x",
    ):  # fmt: skip
        save(tmp_path / folder / "2.png", flat(2))
    dataset = load_image_folder(tmp_path, 4, grey=False)
    assert dataset.classes == ("a", "b")
    assert dataset.images.max() == 1
    assert "11 images are passed over, because they are hidden or in folders of the" in caplog.text
    assert (
        ": #recycle, #snapshot, $RECYCLE.BIN, .AppleDouble, .Trash-1000 and 5 more" in caplog.text
    )


def test_folders_of_systems_may_be_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a" / "1.png", flat(1))
    (tmp_path / "lost+found").mkdir()
    whole = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "lost+found":
            raise PermissionError
        return whole(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)  # root may read everything
    assert load_image_folder(tmp_path, 4, grey=False).classes == ("a",)


def test_images_may_be_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "large.png", flat(1))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    assert len(load_image_folder(tmp_path, 4, grey=False)) == 1
