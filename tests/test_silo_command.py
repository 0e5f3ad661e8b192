"""`fewrounds silo`: kits, and mistakes that get one line before anybody depends on them."""

from __future__ import annotations

import json
import re
import signal
import stat
import time
from pathlib import Path

import pytest

import fewrounds as fr
from experiments import catches, communicate_or_kill, fewrounds, start
from fewrounds.experiment.store import write_json
from fewrounds.silo.provision import ALLOWED, EXAMPLE
from fewrounds.silo.settings import load_silo
from fewrounds.silo.start import check_site
from problems import classifier

FILE = """name = "trial"
sites = ["north", "south"]
[train]
method = "local-sgd"
rounds = 3
[method]
eta = 0.1
K = 2
b = 2
"""

SITE = """import torch
import fewrounds as fr

def problem():
    return fr.Problem(fr.models.mlp([4, 3]), loss=torch.nn.functional.cross_entropy)

def data():
    return torch.randn(8, 4), torch.randint(3, (8,))
"""


def write(folder: Path, text: str = FILE) -> Path:
    path = folder / "silo.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    done = fewrounds("silo", "provision", write(folder))
    assert done.returncode == 0, done.stderr
    assert "fewrounds silo start" in done.stdout
    return folder / "trial-kits"


def test_a_kit_allows_little(kits: Path) -> None:
    assert {path.name for path in kits.iterdir()} == {"server", "coordinator", "north", "south", ".authority"}
    assert stat.S_IMODE(kits.stat().st_mode) == 0o700, "it holds private keys"
    for name in ("server", "north", "south"):
        rights = json.loads((kits / name / "local" / "authorization.json").read_text())["permissions"]
        for right in ("byoc", "shell_commands", "operate"):
            assert rights["project_admin"][right] == "none"
        resources = json.loads((kits / name / "local" / "resources.json.template").read_text())
        assert resources["class_allow_list"] == list(ALLOWED)
        assert resources["class_list_enforcement_mode"] == "enforce"
    assert all(path.startswith(("fewrounds.silo.job.", "nvflare.collab.runtime.")) for path in ALLOWED)
    assert not any((kits / "north").rglob("rootCA.key")), "the authority's key stays with the coordinator"


def test_a_site_that_joins_later_gets_a_kit_of_the_same_authority(kits: Path) -> None:
    before = {path: path.read_bytes() for name in ("server", "north") for path in (kits / name).rglob("*.crt")}
    again = fewrounds("silo", "provision", kits.parent / "silo.toml")
    assert again.returncode == 2
    assert "has every kit already" in again.stderr
    more = write(kits.parent, FILE.replace('"south"]', '"south", "east"]'))
    done = fewrounds("silo", "provision", more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(kits / "east")
    assert {path: path.read_bytes() for path in before} == before, "the others keep theirs"
    roots = {(kits / name / "startup" / "rootCA.pem").read_bytes() for name in ("server", "north", "east")}
    assert len(roots) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"south"]', '"north"]'), "'north' is there twice"),
        (('"south"]', '"../x"]'), "letters, digits and hyphens"),
        (('"south"]', '"server"]'), "no site can be named 'server'"),
        (('"south"]', '"Coordinator"]'), "no site can be named 'Coordinator'"),
        (("[method]", "[server]\nhost = 'my_server'\n[method]"), "the name by which sites reach the server"),
        (("[method]", "[server]\nhost = ''\n[method]"), "the name by which sites reach the server"),
        (("[method]", "[server]\nhost = 'north'\n[method]"), "'north' is the name of a site"),
        (("local-sgd", "local-sdg"), "did you mean 'local-sgd'"),
        (("K = 2", "M = 2"), "no setting 'M'"),
        (("rounds = 3", "rounds = -1"), "rounds"),
        (("[method]", "[los]\nx = 1\n[method]"), "los"),
        (("[method]", "[loss]\non_loss = 'hope'\n[method]"), "on_loss"),
        (("[method]", "[loss]\nleast_sites = 5\n[method]"), "there are 2 sites"),
        (("[method]", "[server]\nport = 99999\n[method]"), "port"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(fr.SettingError, match=said) as caught:
        load_silo(write(tmp_path, FILE.replace(*change)))
    assert "\n" not in str(caught.value)


def test_a_method_with_memory_cannot_go_on_without_a_site(tmp_path: Path) -> None:
    text = FILE.replace("local-sgd", "scaffold") + '[loss]\non_loss = "continue"\n'
    with pytest.raises(fr.SettingError, match="scaffold keeps a vector at every site"):
        load_silo(write(tmp_path, text))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """The file that `silo measure` writes."""
    case = classifier((30, 20))
    found = fr.measure(case.problem, case.workers, samples=4, smooth_samples=2, tolerance=0.01)
    path = tmp_path / "measurement.json"
    write_json(path, {"sites": ["north", "south"], "measurement": found.to_json()})
    return path


def test_advice_on_what_was_measured_across_sites(measured: Path) -> None:
    done = fewrounds("advise", measured, "--budget", "32", "--rounds", "20")
    assert done.returncode == 0, done.stderr
    m = fr.Measurement.from_json(json.loads(measured.read_text())["measurement"])
    advice = fr.advise(m, 32, rounds=20)
    assert "2 workers, budget = 32, 20 rounds" in done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()[:1]}
    for choice in advice.choices:
        assert f"{choice.method.eta:.3g}" in rows[choice.method.name]
        assert str(round(choice.gradients)) in rows[choice.method.name]
    assert "spends" in done.stdout
    assert "…" not in done.stdout, "the table fits 80 columns"
    strict = fewrounds("advise", measured, "--budget", "32", "--rounds", "20", "--mode", "strict")
    rows = {line.split()[0]: line.split() for line in strict.stdout.splitlines() if line.split()[:1]}
    for choice in fr.advise(m, 32, rounds=20, mode="strict").choices:
        assert f"{choice.method.eta:.3g}" in rows[choice.method.name]


@pytest.mark.parametrize(
    ("options", "content", "said"),
    [
        ([], None, "give --budget, or --seconds-per-round and --seconds-per-gradient"),
        (["--budget", "8", "--set", "train.rounds=3"], None, "--output and --set are for experiment files"),
        (["--budget", "8", "--mode", "papr"], None, "--mode papr: must be paper or strict"),
        (["--budget", "8"], "{}", "has no measurement: give the file that `fewrounds silo measure` wrote"),
        (["--budget", "8"], "[1]", "has no measurement"),
        (["--budget", "8"], "{", "has no measurement"),
        (["--budget", "8"], '{"measurement": {"loss": 1.0}}', "advice needs L, L_ahead"),
        (["--budget", "8"], '{"measurement": {"L": {}}}', "has no measurement"),
    ],
)
def test_advice_on_something_else_is_one_line(measured: Path, options: list[str], content: str, said: str) -> None:
    if content is not None:
        measured.write_text(content)
    done = fewrounds("advise", measured, *options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


def test_advice_on_no_file_is_one_line(tmp_path: Path) -> None:
    done = fewrounds("advise", tmp_path / "none.json", "--budget", "8")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "No such file" in line


def test_an_automatic_step_size_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(fr.SettingError, match="fewrounds silo measure .*silo.toml`, then `fewrounds advise`"):
        load_silo(write(tmp_path, FILE.replace("eta = 0.1", 'eta = "auto"')))


@pytest.mark.parametrize("command", ["provision", "run", "status"])
def test_every_command_says_it(tmp_path: Path, command: str) -> None:
    done = fewrounds("silo", command, write(tmp_path, FILE.replace("K = 2", "K = 0")))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "K = 0" in done.stderr


@pytest.mark.parametrize("command", ["run", "status"])
def test_without_kits_one_line_says_so(tmp_path: Path, command: str) -> None:
    done = fewrounds("silo", command, write(tmp_path))
    assert done.returncode == 2
    assert "is no coordinator's kit: run `fewrounds silo provision FILE` first" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is missing: write problem() and data() there"),
        ("x = 1", "has no function problem()"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("def problem(): return 3\ndef data(): return 4", "problem() returned a int, expected a fewrounds.Problem"),
        (EXAMPLE, "data() failed: NotImplementedError"),
        (SITE.replace("def data():", "def data():\n    open('/nothing')"), "data() failed: FileNotFoundError"),
        (SITE + "\ndef test():\n    return torch.randn(8, 5), torch.randint(3, (8,))\n", "the test set"),
        (SITE.replace("(8, 4)", "(8, 5)"), "the loss failed on 4 samples"),
        (SITE.replace("torch.randint(3, (8,))", "torch.full((8,), 7)"), "label 7"),
        (SITE + "ALLOW = 'os'\n", "ALLOW must be a list"),
    ],
)
def test_a_mistake_in_site_py_is_one_line(kits: Path, text: str | None, said: str) -> None:
    path = kits / "north" / "site.py"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    with pytest.raises(fr.FewroundsError, match=re.escape(said)) as caught:
        check_site(kits / "north")
    assert "\n" not in str(caught.value)
    if text is None:
        done = fewrounds("silo", "start", kits / "north")
        assert done.returncode == 2, done.stderr
        assert done.stderr == f"fewrounds: {caught.value}\n"


def test_a_site_that_is_right(kits: Path) -> None:
    (kits / "north" / "site.py").write_text(SITE)
    assert check_site(kits / "north") == "north: 8 samples of (float32[4], int64[]), a problem of 15 numbers"


def test_what_is_no_kit_is_not_started(tmp_path: Path) -> None:
    done = fewrounds("silo", "start", tmp_path)
    assert done.returncode == 2
    assert "is no kit of `fewrounds silo provision`" in done.stderr


@pytest.mark.slow
def test_a_server_that_is_not_there(kits: Path) -> None:
    done = fewrounds("silo", "status", kits.parent / "silo.toml")
    assert done.returncode == 2
    assert "the server does not answer" in done.stderr
    waited = fewrounds("silo", "run", kits.parent / "silo.toml", "--set", "loss.patience_seconds=1", cwd=kits.parent)
    assert waited.returncode == 2
    assert waited.stderr.splitlines()[-1] == "fewrounds: the server was not there for 1 s"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_there_is_no_server(kits: Path, tmp_path: Path, number: int) -> None:
    """FLARE's threads, once they try to connect, would keep the process alive for ever."""
    process = start("silo", "run", kits.parent / "silo.toml", "-o", tmp_path / "out")
    while not catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(4)  # connecting goes on for ten seconds
    process.send_signal(number)
    said, errors = communicate_or_kill(process, 60)
    assert process.returncode == 130
    assert "stopped; the same command goes on from the last whole round" in said + errors
    assert "Traceback" not in errors
