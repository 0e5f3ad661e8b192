"""The report's numbers, verdicts and figures."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fewrounds.errors import DataError, SettingError
from fewrounds.report import write_report
from fewrounds.report.claims import check_claims
from fewrounds.report.frames import curves, finals, ledger, reported, settings_of, summary, thinned, where
from fewrounds.report.page import embedded, page, page_data
from fewrounds.report.tables import claims_table
from results import META, METHODS, chosen_of, diverge, made_frame

QS, BUDGETS = [0.1, 0.85], [32, 64]


def losses(**changes: float) -> dict[tuple[str, float, int], float]:
    """Final losses for which all claims hold; a change is named method__q__budget, as scaffold__085__64."""
    found = {}
    for q in QS:
        for budget in BUDGETS:
            better, worse = (0.3 if budget == 64 else 0.0), (0.4 if q == 0.85 else 0.0)
            found |= {("minibatch-sgd", q, budget): 0.9, ("sarah", q, budget): 0.85}
            found |= {(name, q, budget): 0.8 - better + worse for name in ("local-sgd", "scaffold")}
            found["bvr-l-sgd", q, budget] = 0.7 - better + worse / 10
    for name, value in changes.items():
        method, q, budget = name.rsplit("__", 2)
        key = (method.replace("_", "-"), {"01": 0.1, "085": 0.85}[q], int(budget))
        assert key in found
        found[key] = value
    return found


def verdicts(frame: pd.DataFrame) -> dict[int, str]:
    return {claim.number: claim.verdict for claim in check_claims(frame)}


def evidence(frame: pd.DataFrame, number: int) -> str:
    return next(claim.evidence for claim in check_claims(frame) if claim.number == number)


# --- frames


def test_the_end_and_the_best_of_a_run() -> None:
    frame = made_frame({("sarah", 0.1, 64): 0.5}, seeds=1)
    frame.loc[frame["round"] == 8, ["train_loss", "train_accuracy"]] = [0.2, 0.99]
    last, best = finals(frame).iloc[0], finals(frame, "best").iloc[0]
    assert (last["train_loss"], last["value"]) == (pytest.approx(0.5), "last")
    assert (best["train_loss"], best["train_accuracy"], best["value"]) == (0.2, 0.99, "best")
    with pytest.raises(SettingError, match="value = 'first': must be 'last' or 'best'"):
        finals(frame, "first")  # type: ignore[arg-type]


def test_mean_sd_and_n_are_those_of_the_seeds(digits_results: pd.DataFrame) -> None:
    table = summary(digits_results[digits_results["role"] == "report"])
    assert len(table) == 5 * 2 * 2 * 5
    assert set(table["n"]) == {2}
    rows = digits_results[
        digits_results["run"].str.startswith("report-sarah-0.85-64-") & (digits_results["round"] == 12)
    ]
    got = where(table, {"method": "sarah", "q": 0.85, "budget": 64, "criterion": "test_accuracy"}).iloc[0]
    assert got["mean"] == pytest.approx(rows["test_accuracy"].mean())
    assert got["sd"] == pytest.approx(rows["test_accuracy"].std(ddof=1))


def test_lost_runs_are_counted_and_not_averaged() -> None:
    frame = diverge(made_frame({("sarah", 0.1, 64): 0.5}, seeds=4), "sarah-0.1-64-1", after=6)
    frame = frame[(frame["run"] != "sarah-0.1-64-2") | (frame["round"] < 10)]
    row = where(summary(frame), {"criterion": "train_loss"}).iloc[0]
    assert (row["n"], row["diverged"], row["unfinished"]) == (2, 1, 1)
    assert row["mean"] == pytest.approx(0.51)
    single = where(summary(frame[frame["seed"] == 3]), {"criterion": "train_loss"}).iloc[0]
    assert math.isnan(single["sd"])


@pytest.mark.parametrize(
    ("start", "end", "state"),
    [
        pytest.param(2.0, 4.1, "diverged", id="more than doubled"),
        pytest.param(2.0, 3.9, "finished", id="risen by less"),
        pytest.param(-2.0, 1.0, "finished", id="a loss below 0 has no double"),
        pytest.param(0.0, 1.0, "finished", id="nor has 0"),
    ],
)
def test_a_loss_that_more_than_doubled_has_diverged(start: float, end: float, state: str) -> None:
    """At its end, whatever it was between; the others' mean is without it, and so is their best."""
    frame = made_frame({("sarah", 0.1, 64): 0.5}, seeds=3)
    frame.loc[(frame["seed"] == 1) & (frame["round"] == 10), "train_loss"] = 1e9
    risen = frame["seed"] == 2
    frame.loc[risen & (frame["round"] == 0), "train_loss"] = start
    frame.loc[risen & (frame["round"] == 20), "train_loss"] = end
    for value in ("last", "best"):
        assert finals(frame, value).set_index("seed")["state"].to_dict() == {1: "finished", 2: state, 3: "finished"}
    row = where(summary(frame), {"criterion": "train_loss"}).iloc[0]
    lost = state == "diverged"
    assert (row["n"], row["diverged"], row["unfinished"]) == (3 - lost, int(lost), 0)
    assert row["mean"] == pytest.approx(0.5 if lost else (1.0 + end) / 3)
    under_way = frame[~risen | (frame["round"] < 20)].copy()
    under_way.loc[risen & (under_way["round"] == 18), "train_loss"] = 1e9
    assert finals(under_way).set_index("seed").loc[2, "state"] == "unfinished"


def test_curves_share_rounds_and_end_where_a_run_diverged() -> None:
    frame = made_frame({("sarah", 0.1, 64): 0.5}, seeds=3)
    frame = frame[(frame["seed"] != 3) | (frame["round"] != 4)]  # one run was not evaluated there
    (curve,) = curves(frame)
    assert curve.table["round"].tolist() == [0, 2, *range(6, 21, 2)]
    assert curve.n == 3
    own = frame[frame["round"] == 20]
    assert curve.table["train_loss_mean"].iloc[-1] == pytest.approx(own["train_loss"].mean())
    assert curve.table["train_loss_sd"].iloc[-1] == pytest.approx(own["train_loss"].std())
    assert curve.table["bytes"].iloc[-1] == 2 * 20 * 4000

    (lost,) = curves(diverge(frame, "sarah-0.1-64-2", after=8))
    assert (lost.n, lost.diverged) == (3, 1)
    assert lost.table["train_loss_mean"].notna().sum() == 3  # rounds 0, 2 and 6
    assert lost.table["gradients_per_worker"].iloc[-1] == 20 * 64

    (unfinished,) = curves(frame[(frame["seed"] != 1) | (frame["round"] < 5)])
    assert (unfinished.n, unfinished.unfinished) == (2, 1)
    (young,) = curves(frame[frame["round"] < 9])
    assert (young.n, young.unfinished, young.table["round"].max()) == (3, 3, 8)


def test_modelled_time_counts_every_aggregation_of_a_round() -> None:
    frame = made_frame({("sarah", 0.1, 64): 0.5, ("mime", 0.1, 64): 0.4})
    frame["aggregations"] = frame["method"].map({"sarah": 1, "mime": 2})
    assert "aggregations" not in settings_of(frame)
    for curve in curves(frame):
        waits = {"sarah": 1, "mime": 2}[curve.method]
        expected = waits * curve.table["round"] + 0.001 * curve.table["gradients_per_worker"]
        np.testing.assert_allclose(curve.table["time"], expected)


def test_modelled_time_is_a_second_a_round_and_a_millisecond_a_gradient(digits_results: pd.DataFrame) -> None:
    for curve in curves(reported(digits_results)):
        expected = curve.table["round"] + 0.001 * curve.table["gradients_per_worker"]
        np.testing.assert_allclose(curve.table["time"], expected)
    text = page(digits_results, chosen_of(digits_results), META, [])
    assert 'id="seconds-round" min="0" step="any" value="1"' in text
    assert 'id="seconds-gradient" min="0" step="any" value="0.001"' in text


def test_a_further_axis_is_found_and_a_consequence_is_none() -> None:
    base = {("sarah", 0.1, 64): 0.5, ("local-sgd", 0.1, 64): 0.6}
    one = made_frame(base, l2=0.0, path="x")
    two = made_frame(base, l2=0.1).assign(run=lambda f: f["run"] + "-l2")
    frame = pd.concat([one, two], ignore_index=True)
    frame["path"] = "results/" + frame["run"]
    frame["T"] = np.where(frame["method"] == "sarah", 21, 1)
    assert settings_of(frame)[5:] == ["l2"]
    assert set(summary(frame)["n"]) == {3}
    etas = frame[frame["l2"] == 0.0].copy()
    etas = pd.concat([etas, etas.assign(eta=0.5, run=etas["run"] + "-eta")])
    assert settings_of(etas)[5:] == ["eta"]


def test_the_ledger_is_that_of_the_last_round(digits_results: pd.DataFrame) -> None:
    costs = ledger(digits_results[digits_results["role"] == "report"])
    assert len(costs) == 10
    row = where(costs, {"method": "minibatch-sgd", "budget": 64}).iloc[0]
    assert (row["gradients_per_worker"], row["round"], row["b"]) == (12 * 64, 12, 64)
    assert pd.isna(row["K"])


def test_thinning_keeps_the_ends() -> None:
    table = pd.DataFrame({"round": range(3001)})
    thin = thinned(table)["round"].tolist()
    assert (len(thin), thin[0], thin[-1]) == (300, 0, 3000)
    assert thinned(table.head(7)).equals(table.head(7))


# --- claims


def test_all_claims_hold_where_they_should() -> None:
    claims = check_claims(made_frame(losses()))
    assert [claim.number for claim in claims] == [1, 2, 3, 4, 5]
    assert [claim.verdict for claim in claims] == ["holds"] * 5
    for claim in claims[:4]:
        assert "n = 3" in claim.evidence
        assert claim.evidence.endswith(".")
    assert "Local SGD 0.5 → 0.9" in claims[0].evidence
    assert "tests/test_identities.py" in claims[4].evidence


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        pytest.param(1, {"scaffold__085__64": 0.505}, id="SCAFFOLD does not get worse"),
        pytest.param(1, {"sarah__085__64": 1.0}, id="SARAH gets worse too"),
        pytest.param(2, {"sarah__085__64": 0.3}, id="another is best at one q"),
        pytest.param(2, {"bvr_l_sgd__085__64": 0.65}, id="its own loss with q is not small"),
        pytest.param(3, {"bvr_l_sgd__01__64": 0.69}, id="a local method does not improve"),
        pytest.param(3, {"minibatch_sgd__01__64": 0.6}, id="a non-local method improves"),
        pytest.param(4, {"sarah__01__32": 0.5}, id="behind at one setting"),
    ],
)
def test_a_claim_fails_alone_where_it_should(number: int, changes: dict[str, float]) -> None:
    assert verdicts(made_frame(losses(**changes)))[number] == "does not hold"


def test_a_change_within_the_spread_of_the_seeds_is_not_clear() -> None:
    assert verdicts(made_frame(losses(), spread=0.3))[1] == "does not hold"
    assert verdicts(made_frame(losses(sarah__085__64=0.95), spread=0.1))[1] == "holds"
    tiny = made_frame(losses(sarah__085__64=0.86), spread=0.0001)  # beyond the seeds, but a hundredth
    assert verdicts(tiny)[1] == "holds"


def test_ahead_means_in_nearly_all_rounds_and_at_the_last() -> None:
    frame = made_frame(losses())
    own = (frame["method"] == "bvr-l-sgd") & (frame["q"] == 0.1) & (frame["budget"] == 32)
    frame.loc[own & (frame["round"].between(2, 4)), "train_loss"] += 1
    assert verdicts(frame)[4] == "does not hold"
    assert "80 % at q = 0.1, budget = 32" in evidence(frame, 4)
    late = made_frame(losses())
    late.loc[own & (late["round"] == 20), "train_loss"] += 1
    assert verdicts(late)[4] == "does not hold"
    assert "at 3 of 4 settings" in evidence(late, 4)


def test_divergence_counts_as_an_infinite_loss() -> None:
    steady = made_frame(losses(scaffold__085__64=0.5))
    assert verdicts(steady)[1] == "does not hold"
    lost = diverge(steady, "scaffold-0.85-64-1", after=6)
    assert verdicts(lost)[1] == "holds"
    assert "SCAFFOLD 0.5 → diverged" in evidence(lost, 1)
    ours = diverge(made_frame(losses()), "bvr-l-sgd-0.85-64-1", after=6)
    assert verdicts(ours) == {1: "holds", 2: "does not hold", 3: "holds", 4: "does not hold", 5: "holds"}
    assert "the loss with q: BVR-L-SGD diverged, Local SGD +0.4, SCAFFOLD +0.4;" in evidence(ours, 2)
    risen = steady.copy()
    risen.loc[(risen["run"] == "scaffold-0.85-64-1") & (risen["round"] == 20), "train_loss"] = 1e15
    assert "SCAFFOLD 0.5 → diverged" in evidence(risen, 1)
    early = diverge(made_frame(losses()), "sarah-0.1-64-1", after=6)
    assert evidence(early, 1) == "SARAH diverged at q = 0.1 and budget 64."


def test_not_checked_says_what_is_missing() -> None:
    full = made_frame(losses())
    without = full[full["method"] != "scaffold"]
    assert verdicts(without) == {**dict.fromkeys((1, 2, 3, 4), "not checked"), 5: "holds"}
    assert evidence(without, 1) == "There is no run of SCAFFOLD."
    assert evidence(full[full["q"] == 0.1], 1) == "It needs 2 values of q, and there is one."
    assert evidence(full[full["budget"] == 32], 3) == "It needs 2 budgets, and there is one."
    assert "has one seed" in evidence(full[full["seed"] == 1], 1)
    gap = full[(full["method"] != "sarah") | (full["q"] != 0.85)]
    assert evidence(gap, 1) == "There is no finished run of SARAH at q = 0.85 and budget 64."
    assert evidence(gap, 4) == "There is no run of SARAH at q = 0.85 and budget 32."
    assert evidence(full.assign(role="tuning"), 2) == "There are only tuning runs so far."
    young = full[full["round"] < 10]
    assert evidence(young, 2) == "There is no finished run of minibatch SGD at q = 0.1 and budget 64."


def test_settings_other_than_q_and_budget_get_verdicts_of_their_own() -> None:
    good = made_frame(losses())
    bad = made_frame(losses(sarah__085__64=0.3), budget_mode="strict").assign(run=lambda f: f["run"] + "-strict")
    claims = [claim for claim in check_claims(pd.concat([good, bad])) if claim.number == 2]
    assert {claim.setting["budget_mode"]: claim.verdict for claim in claims} == {
        "paper": "holds",
        "strict": "does not hold",
    }


def test_the_page_tells_the_rule_of_a_claim_once() -> None:
    """Two settings: the claims stand in order, each with both verdicts and one rule."""
    both = pd.concat([one := made_frame(losses()), one.assign(budget_mode="strict", run=one["run"] + "-strict")])
    claims = check_claims(both)
    shown = unescape(claims_table(claims))
    for number in (1, 2, 3, 4):
        claim = next(claim for claim in claims if claim.number == number)
        assert shown.count(claim.statement) == 2
        assert shown.count(claim.criterion) == 1
    assert re.findall(r'<th scope="row">(\d)', shown) == list("112233445")


# --- the page without a browser


def test_the_page_is_whole_and_names_its_figures(digits_results: pd.DataFrame, tmp_path: Path) -> None:
    text = page(digits_results, chosen_of(digits_results), META, ["against-q.png", "against-q.pdf"])
    assert 'href="figures/against-q.pdf"' in text
    assert text.count("<script") - text.split("<main>")[0].count("<script") >= 3
    assert "&lt;/script&gt; &amp; &lt;b&gt;" in text  # the experiment file
    path = write_report(tmp_path / "new", digits_results, None, {}, figures=False)
    assert [child.name for child in (tmp_path / "new").iterdir()] == ["index.html"]
    assert "No learning rate was tuned" in path.read_text()


def test_the_data_of_the_page_is_json_that_stays_in_its_place() -> None:
    frame = diverge(made_frame({("sarah</script>", 0.1, 64): 0.5}), "sarah</script>-0.1-64-1", after=4)
    text = embedded(page_data(frame))
    assert "<" not in text
    assert json.loads(text)["methods"][0]["key"] == "sarah</script>"
    assert json.loads(text)["curves"][0]["mean"]["train_loss"][2:4] == [None, None]


def test_tuning_runs_are_shown_while_there_are_no_others(digits_results: pd.DataFrame) -> None:
    tuning = digits_results[digits_results["role"] == "tuning"]
    text = page(tuning, chosen_of(tuning), {}, [])
    assert "only tuning runs so far" in text
    assert [one["key"] for one in page_data(tuning)["settings"]] == ["eta"]


def test_the_same_seeds_for_tuning_and_report_are_pointed_out(digits_results: pd.DataFrame) -> None:
    text = page(digits_results, chosen_of(digits_results), {**META, "tuning_seeds": [1]}, [])
    assert "chosen and reported on the same seed (1)" in text


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    frame = made_frame({("sarah", 0.1, 64): 0.5}, seeds=1)
    with pytest.raises(DataError, match="^the results lack the column 'eta'$"):
        write_report(tmp_path, frame.drop(columns="eta"), None, {})
    with pytest.raises(DataError, match="^there is nothing to report yet: no run has been evaluated$"):
        write_report(tmp_path, frame.head(0), None, {})
    (tmp_path / "file").write_text("kept")
    with pytest.raises(SettingError, match="^cannot write the report to .*file: File exists$"):
        write_report(tmp_path / "file", frame, None, {})
    assert (tmp_path / "file").read_text() == "kept"


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = made_frame({(name, 0.1, 64): 0.5 for name in METHODS}, seeds=1)
    path = write_report(tmp_path, frame, None, {"name": "old"}, figures=False)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SettingError, match="No space left on device"):
        write_report(tmp_path, frame, None, {"name": "new"}, figures=False)
    assert path.read_bytes() == before
    assert [child.name for child in tmp_path.iterdir()] == ["index.html"]
