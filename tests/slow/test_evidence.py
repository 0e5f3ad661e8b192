"""The packed runs of results/ are those that this code makes, on the genuine CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import fewrounds
from fewrounds.data import catalog
from fewrounds.experiment.archive import read, unpack
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.work import execute

ROOT = Path(__file__).parents[2]
PACKED = sorted((ROOT / "results" / "evidence").glob("*.parquet"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all packed runs, as README.md has it: some files read the steps that others chose."""
    catalog.fetch("cifar10", progress=False)
    folder = tmp_path_factory.mktemp("evidence")
    for path in PACKED:
        unpack(path, folder / "runs" / path.stem)
    return folder


@pytest.mark.parametrize("name", [path.stem for path in PACKED])
def test_nothing_is_left_to_run(name: str, runs: Path) -> None:
    """The name of a run is a digest of its settings, its samples, who has them, and the code of its method."""
    done = fewrounds("run", ROOT / "experiments" / f"{name}.toml", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a run that is not there would be told of"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("evidence-a", method) for method in ("minibatch-sgd", "local-sgd", "sarah", "scaffold", "bvr-l-sgd")),
        *(("evidence-e", method) for method in ("sarah", "bvr-l-sgd")),
        *((f"evidence-{part}", "bvr-l-sgd") for part in "fgh"),
        *((f"evidence-{part}", "scaffold") for part in "ij"),
        *((f"ablation-{what}", "bvr-l-sgd") for what in ("combine", "stage")),
    ],
)
def test_a_run_begins_as_it_did(name: str, method: str) -> None:
    """To its first evaluation, fifty rounds on, up to float32: seeds differ by thirty times as much and more."""
    frame, content = read(ROOT / "results" / "evidence" / f"{name}.parquet")
    reported = frame[(frame["role"] == "report") & (frame["method"] == method) & (frame["outcome"] == "finished")]
    first = int(reported["round"][reported["round"] > 0].min())
    then = reported[reported["round"] == first].iloc[-1]  # on the most heterogeneous split, with the last seed
    spec = {key: value for key, value in content["grid"]["runs"][then["run"]].items() if key != "role"}
    spec["train"] = {**spec["train"], "evaluate_last": 1}
    now = execute(RunSpec(**spec), rounds=first, compile=False).history.iloc[-1]
    exact = ["round", "picked", "gradients_per_worker", "vectors_up", "vectors_down", "bytes_up", "bytes_down"]
    assert now[exact].tolist() == then[exact].tolist()
    for column in ("train_loss", "test_loss"):
        assert now[column] == pytest.approx(then[column], rel=1e-5)
