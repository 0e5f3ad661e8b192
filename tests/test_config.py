"""Experiment files: what they may say, what the grid makes of it, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import fewrounds as fr
from experiments import SMALL, write
from fewrounds.experiment import grid, tuning
from fewrounds.experiment.config import load_experiment
from fewrounds.experiment.summary import to_toml

ROOT = Path(__file__).parent.parent


def test_a_list_is_an_axis_and_a_value_is_a_list_of_one(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    assert experiment.partition.q == [0.1, 0.85]
    assert experiment.train.budget == [32]
    cells = grid.cells(experiment)
    assert len(cells) == 2 * 2
    assert {(c.train["method"], c.partition["q"]) for c in cells} == {
        (m, q) for m in ("local-sgd", "bvr-l-sgd") for q in (0.1, 0.85)
    }
    assert len(grid.tuning_runs(experiment, cells[0])) == 2
    assert [spec.train["seed"] for spec in grid.report_runs(experiment, cells[0], 0.2)] == [1, 2]


def test_the_papers_whole_protocol() -> None:
    experiment = load_experiment(ROOT / "experiments" / "paper.toml")
    cells = grid.cells(experiment)
    assert len(cells) == 4 * 3 * 5
    assert sum(len(grid.tuning_runs(experiment, cell)) for cell in cells) == 60 * 6
    assert sum(len(grid.report_runs(experiment, cell, 0.1)) for cell in cells) == 60 * 5
    assert {cell.train["rounds"] for cell in cells} == {3000}
    assert {cell.train["evaluate_last"] for cell in cells} == {100}
    assert experiment.tuning.eta == [0.005, 0.01, 0.05, 0.1, 0.5, 1.0]
    assert experiment.model.l2 == [5e-3]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_that_is_shipped_is_valid(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    again = load_experiment(write_text(path.stem, to_toml(experiment.model_dump(mode="json")), path))
    assert again == experiment, "what the page shows as the config is the config"


def write_text(name: str, text: str, like: Path) -> Path:
    import tempfile

    path = Path(tempfile.mkdtemp()) / f"{name}.toml"
    path.write_text(text)
    return path


def test_settings_a_split_does_not_use_make_no_further_runs(tmp_path: Path) -> None:
    text = SMALL.replace(
        "q = [0.1, 0.85]", 'kind = ["class-skew", "dirichlet"]\nq = [0.1, 0.85]\nalpha = [0.1, 1.0, 10.0]\nworkers = 10'
    )
    cells = grid.cells(load_experiment(write(tmp_path, text)))
    assert len(cells) == 2 * (2 + 3)


def test_the_fingerprint_sees_every_setting_the_data_and_the_code(tmp_path: Path, monkeypatch) -> None:
    experiment = load_experiment(write(tmp_path))
    specs = [s for cell in grid.cells(experiment) for s in grid.tuning_runs(experiment, cell)]
    names = {spec.fingerprint("data") for spec in specs}
    assert len(names) == len(specs)
    assert specs[0].fingerprint("data") == specs[0].fingerprint("data")
    assert specs[0].fingerprint("data") != specs[0].fingerprint("other data")
    before = specs[0].fingerprint("data")
    monkeypatch.setattr(grid, "code_digest", lambda method: "changed")
    assert specs[0].fingerprint("data") != before


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path)
    changed = load_experiment(
        path, ["train.rounds=5", "train.method=['sarah']", "data.source=cifar10", "partition.q=0.5"]
    )
    assert changed.train.rounds == [5]
    assert changed.train.method == ["sarah"]
    assert changed.data.source == ["cifar10"]
    assert changed.partition.q == [0.5]
    assert load_experiment(path, ["methods.bvr-l-sgd.form='theory'"]).methods == {"bvr-l-sgd": {"form": "theory"}}


WRONG = [
    ("rounds = 12", "rouns = 12", "unknown key 'train.rouns'; did you mean 'rounds'?"),
    ("[partition]", "[partitions]", "unknown key 'partitions'; did you mean 'partition'?"),
    ("rounds = 12", "rounds = 'many'", "train.rounds = 'many': input should be a valid integer"),
    ("rounds = 12", "", "train.rounds is missing"),
    ("rounds = 12", "rounds = true", "train.rounds = True: input should be a valid integer"),
    ("rounds = 12", 'rounds = "3"', "train.rounds = '3': input should be a valid integer"),
    ("[train]", "[other]", "unknown key 'other'"),
    ("[data]", "[methods.local-sgdd]\nK = 1\n[data]", "methods.local-sgdd = 'local-sgdd': there is no method"),
    ("rounds = 12", "rounds = 0", "train.rounds = 0: input should be greater than or equal to 1"),
    ("q = [0.1, 0.85]", "q = [0.1, 1.5]", "partition.q = 1.5: input should be less than or equal to 1"),
    ("q = [0.1, 0.85]", "q = []", "partition.q = []: an empty list: give at least one value"),
    ("q = [0.1, 0.85]", "", "partition.q is missing: the class-skew split needs it"),
    ('"bvr-l-sgd"]', '"bvr-lsgd"]', "there is no method 'bvr-lsgd'; did you mean 'bvr-l-sgd'?"),
    ("seed = [1, 2]", "seed = [0, 1]", "tuning.seed and train.seed share [0]"),
    ("eta = [0.05, 0.2]", "eta = []", "tuning.eta = []"),
    ("eta = [0.05, 0.2]", "eta = [-1.0]", "tuning.eta = -1.0: input should be greater than 0"),
    ("[tuning]\neta = [0.05, 0.2]\nlast = 3", "", "give either train.eta, train.eta_from or a [tuning] section"),
    ("last = 3", "last = 3\n[tuning.more]\nsarah = 2.0", "tuning.more.sarah: sarah is not in train.method"),
    ("last = 3", "last = 3\n[tuning.more]\nlocal-sgd = 0.0", "tuning.more.local-sgd = 0.0: input should be greater"),
    ("[tuning]", "[methods.bvr-l-sgd]\nT = []\n[tuning]", "methods.bvr-l-sgd.T = []: an empty list"),
    ('name = "small"', 'name = "a b/c"', "name = 'a b/c': string should match pattern"),
    ('name = "small"', 'name = "small', "experiment.toml: Illegal character '\\n' (at line 2, column 14)"),
    (
        "[tuning]",
        "[methods.sarah]\nform = 'theory'\n[tuning]",
        "methods.sarah: unknown key 'form'; known: T, b, b_tilde, eta",
    ),
    ("l2 = 5e-3", "l2 = -1", "model.l2 = -1: input should be greater than or equal to 0"),
    ('source = "digits"', "source = 3", "data.source = 3: input should be a valid string"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[message[:45] for *_, message in WRONG])
def test_mistakes_name_the_key_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(fr.SettingError) as caught:
        load_experiment(write(tmp_path, SMALL.replace(old, new)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds", "--set 'rounds': expected section.key=value"),
        ("train.=3", "expected section.key=value"),
        ("train.rounds.x=3", "'rounds' is no section"),
        ("train.rouns=3", "unknown key 'train.rouns'; did you mean 'rounds'?"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(fr.SettingError) as caught:
        load_experiment(write(tmp_path), [override])
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(fr.SettingError, match=r"nowhere.toml: there is no such file"):
        load_experiment(tmp_path / "nowhere.toml")


# ---------------------------------------------------------------------- tuning


def history(accuracy: list[float], loss: list[float]):
    import pandas as pd

    rounds = range(len(accuracy))
    return pd.DataFrame({"round": rounds, "train_accuracy": accuracy, "train_loss": loss, "test_accuracy": accuracy})


def test_the_papers_rule_is_the_minimum_over_the_last_rounds() -> None:
    steady, spiky = history([0.1, 0.6, 0.7, 0.7], [2, 1, 1, 1]), history([0.1, 0.9, 0.2, 0.9], [2, 1, 5, 0.5])
    assert tuning.score(steady, "finished", "paper", 3) == 0.6
    assert tuning.score(spiky, "finished", "paper", 3) == 0.2
    assert tuning.score(spiky, "finished", "paper", 1) == 0.9
    assert tuning.score(steady, "finished", "paper", 100) == 0.6, "the start is not an iterate"
    assert tuning.score(spiky, "finished", "final-loss", 3) == -0.5
    assert tuning.score(spiky, "finished", "test_accuracy:max", 3) == 0.9
    assert tuning.score(spiky, "finished", "train_loss:min", 3) == -0.5


def test_a_diverged_rate_never_wins() -> None:
    assert tuning.score(history([1.0], [0.0]), "diverged", "paper", 1) == float("-inf")
    choice = tuning.choose({0.1: [(0.2, 1.0)], 1.0: [(float("-inf"), float("inf"))]})
    assert (choice["eta"], choice["at_edge"]) == (0.1, True)
    everything_diverged = tuning.choose({0.1: [(float("-inf"), float("nan"))], 1.0: [(float("-inf"), float("nan"))]})
    assert everything_diverged["score"] is None
    assert everything_diverged["eta"] is None


def test_the_mean_over_seeds_decides_and_the_loss_between_equals() -> None:
    choice = tuning.choose(
        {0.01: [(0.5, 3.0), (0.7, 1.0)], 0.1: [(0.6, 0.5), (0.6, 0.5)], 1.0: [(0.9, 0.1), (0.1, 0.1)]}
    )
    assert choice["eta"] == 0.1
    assert not choice["at_edge"]


@pytest.mark.parametrize(
    ("rule", "message"), [("papper", "did you mean 'paper'"), ("train_loss", "'train_loss:min' or 'train_loss:max'")]
)
def test_unknown_rules_are_refused(rule: str, message: str) -> None:
    with pytest.raises(fr.SettingError, match=message):
        tuning.check_rule(rule)
