"""The report's figures: which are drawn, and what they show and say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fewrounds.report.figures import write_figures
from results import diverge, made_frame

QS = [0.1, 0.85]


def test_every_figure_there_is_data_for(digits_results: pd.DataFrame, tmp_path: Path) -> None:
    written = write_figures(tmp_path, digits_results)
    names = {path.stem for path in written}
    criteria = ["train-loss", "train-accuracy", "test-loss", "test-accuracy"]
    curves = {f"{c}-against-{x}" for c in criteria for x in ("rounds", "gradients", "bytes", "time")}
    assert names == {"against-q", "against-budget"} | curves
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"%PDF")


def test_figures_without_data_are_left_out(tmp_path: Path) -> None:
    frame = made_frame({("sarah", np.nan, 64): 0.5}, seeds=1, test_loss=np.nan, test_accuracy=np.nan)
    names = {path.name for path in write_figures(tmp_path, frame) if path.suffix == ".png"}
    assert names == {
        f"train-{c}-against-{x}.png" for c in ("loss", "accuracy") for x in ("rounds", "gradients", "bytes", "time")
    }


def test_a_figure_for_each_other_setting_and_for_a_diverged_run(tmp_path: Path) -> None:
    one = made_frame({("sarah", q, 64): 0.5 for q in QS}, seeds=2, test_loss=np.nan, test_accuracy=np.nan)
    frame = pd.concat([one, one.assign(dataset="a/b c", run=one["run"] + "x")])
    frame = diverge(frame, "sarah-0.1-64-1", after=4)
    names = {path.name for path in write_figures(tmp_path, frame, "best")}
    assert {"against-q-dataset-a_b_c.pdf", "train-loss-against-rounds-dataset-made.png"} <= names


def test_a_grid_with_gaps_has_no_empty_panel_and_names_what_diverged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two q at budget 64, one at 32; at the other end of q every run of a method diverges."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.update({Path(path).stem: figure}))
    cells = [(0.1, 32), (0.1, 64), (0.85, 64)]
    frame = made_frame({(name, *cell): 0.5 for name in ("sarah", "bvr-l-sgd") for cell in cells}, seeds=2)
    for seed in (1, 2):
        frame = diverge(frame, f"bvr-l-sgd-0.85-64-{seed}", after=4)
    write_figures(tmp_path, frame)
    panels = [axes for axes in drawn["train-loss-against-rounds"].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"q = {q:g}, budget = {budget}" for q, budget in cells]
    assert [bool(axes.get_xlabel()) for axes in panels] == [False, True, True]
    assert [bool(axes.get_ylabel()) for axes in panels] == [True, True, False]
    against = drawn["against-q"]
    assert "2 of BVR-L-SGD at 0.85" in against.get_suptitle()
    assert "SARAH" not in against.get_suptitle()
    assert [tick.get_text() for tick in against.axes[0].get_xticklabels()] == ["0.1", "0.85"]


@pytest.mark.parametrize(("seeds", "said"), [(1, "one run each"), (2, "mean ± standard deviation, n = 2")])
def test_a_single_run_is_not_called_a_mean(
    seeds: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    titles: dict[str, str] = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **_: titles.update({Path(path).stem: figure.get_suptitle()})
    )
    write_figures(tmp_path, made_frame({("sarah", q, 64): 0.5 for q in QS}, seeds=seeds))
    assert titles["train-loss-against-rounds"] == said
    assert titles["against-q"] == f"budget = 64: at the end of the run; {said}"


def test_a_loss_that_blows_up_does_not_press_the_others_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Losses fall from 2 to 1 and 0.5; one rises to 1e9."""
    drawn: dict[str, tuple[float, float]] = {}
    save = Figure.savefig

    def noting(figure: Figure, path: Path, **options: object) -> None:
        drawn[Path(path).stem] = figure.axes[0].get_ylim()
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", noting)
    calm = {("local-sgd", 0.1, 64): 1.0, ("bvr-l-sgd", 0.1, 64): 0.5}
    write_figures(tmp_path, made_frame(calm))
    low, high = drawn["train-loss-against-rounds"]
    assert low < 0.5 < 2 < high, "all is shown"
    write_figures(tmp_path, made_frame({**calm, ("sarah", 0.1, 64): 1e9}))
    assert drawn["train-loss-against-rounds"] == pytest.approx((0.475, 2.4))
    assert drawn["train-accuracy-against-rounds"][0] < -1e8, "only losses have a start to stay below"


def test_a_run_whose_loss_more_than_doubled_is_named_and_not_averaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every run of one method ends at 1e9 at the larger q, the others between 0.5 and 1."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.update({Path(path).stem: figure}))
    calm = {(name, q, 64): 0.5 + 0.5 * (name == "sarah") for name in ("sarah", "bvr-l-sgd") for q in QS}
    write_figures(tmp_path, made_frame({**calm, ("local-sgd", 0.1, 64): 0.7, ("local-sgd", 0.85, 64): 1e9}))
    against = drawn["against-q"]
    assert against.axes[0].get_title() == "train loss"
    assert against.axes[0].get_ylim()[1] < 1.1
    assert against.get_suptitle().endswith("without runs that diverged: 3 of Local SGD at 0.85")


def test_long_names_stay_within_the_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside: dict[str, bool] = {}

    def noting(figure: Figure, path: Path, **_: object) -> None:
        box = figure.legends[0].get_window_extent()
        inside[Path(path).stem] = 0 <= box.x0 < box.x1 <= figure.bbox.width

    monkeypatch.setattr(Figure, "savefig", noting)
    names = [f"a method of your own, with β = 0.{i}" for i in range(3)]
    write_figures(tmp_path, made_frame({(name, q, 64): 0.5 for name in ["sarah", *names] for q in QS}))
    assert inside["train-loss-against-rounds"]
    assert all(inside.values())
