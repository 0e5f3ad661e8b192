"""The page in a real browser, opened from disk."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fewrounds as fr
from fewrounds.report import write_report
from results import META, METHODS, chosen_of, diverge, made_frame

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("FEWROUNDS_REQUIRE_BROWSER") == "1"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED,
    reason="there is no chromium on PATH, so the page is not tested (FEWROUNDS_REQUIRE_BROWSER=1 makes this a failure)",
)
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SWITCHES += ["--disable-sync", "--no-first-run", "--disable-quic"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert CHROMIUM, "FEWROUNDS_REQUIRE_BROWSER=1, but there is no chromium on PATH"
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


class Opened:
    """A page that is open in the browser, and what a reader does with it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(60_000)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.url = path.resolve().as_uri()
        self.tab.goto(self.url)
        self.until("document.getElementById('chart').data !== undefined")

    def until(self, script: str) -> None:
        """Wait for a condition. Playwright's own way to wait evaluates text in the page, which the page forbids."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self.tab.evaluate(script):
                return
            self.tab.wait_for_timeout(50)
        pytest.fail(f"never true: {script}")

    def traces(self, chart: str = "chart", kind: str = "curve") -> dict[str, tuple[list[float], list[float]]]:
        """What is plotted, by method."""
        script = "id => document.getElementById(id).data.map(t => [t.meta.kind, t.meta.method, t.x, t.y])"
        return {method: (x, y) for found, method, x, y in self.tab.evaluate(script, chart) if found == kind}

    def choose(self, control: str, label: str) -> None:
        self.tab.get_by_label(control, exact=True).select_option(label=label)

    def close(self) -> None:
        """Leave the page, which must have been silent and to itself."""
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if url != self.url and not url.startswith("blob:")] == []


@pytest.fixture(scope="module")
def report(digits_results: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(folder, digits_results, chosen_of(digits_results), META, figures=False)


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    page = Opened(browser, report)
    yield page
    page.close()


@pytest.fixture
def open_frame(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    pages = []

    def open_it(frame: pd.DataFrame, chosen: pd.DataFrame | None = None, **meta: Any) -> Opened:
        pages.append(Opened(browser, write_report(tmp_path, frame, chosen, meta, figures=False)))
        return pages[-1]

    yield open_it
    for page in pages:
        page.close()


def expected(frame: pd.DataFrame, method: str, q: float, budget: int, column: str) -> pd.Series:
    rows = frame[(frame["role"] == "report") & (frame["method"] == method)]
    rows = rows[(rows["q"] == q) & (rows["budget"] == budget)].assign(bytes=rows["bytes_up"] + rows["bytes_down"])
    return rows.groupby("round")[column].mean()


def test_it_opens_at_the_smallest_q_and_the_largest_budget(opened: Opened, digits_results: pd.DataFrame) -> None:
    traces = opened.traces()
    assert list(traces) == METHODS
    for method, (x, y) in traces.items():
        losses = expected(digits_results, method, 0.1, 64, "train_loss")
        assert x == losses.index.tolist()
        np.testing.assert_allclose(y, losses, rtol=1e-6)
    assert "n = 2" in opened.tab.locator("#chart-caption").inner_text()


@pytest.mark.parametrize(
    ("label", "column"), [("gradients per worker", "gradients_per_worker"), ("bytes moved", "bytes")]
)
def test_the_axis_switch_changes_the_x_data_only(
    opened: Opened, digits_results: pd.DataFrame, label: str, column: str
) -> None:
    before = opened.traces()
    opened.choose("x-axis", label)
    after = opened.traces()
    for method in METHODS:
        np.testing.assert_allclose(after[method][0], expected(digits_results, method, 0.1, 64, column), rtol=1e-6)
        assert after[method][1] == before[method][1]
        assert after[method][0] != before[method][0]


def test_modelled_time_is_as_the_formula_says(opened: Opened, digits_results: pd.DataFrame) -> None:
    assert not opened.tab.locator("#time").is_visible()
    opened.choose("x-axis", "modelled time")
    assert opened.tab.locator("#time").is_visible()
    for C, G in ((2.5, 0.01), (0, 1)):
        opened.tab.get_by_label("seconds an aggregation").fill(str(C))
        opened.tab.get_by_label("seconds a gradient").fill(str(G))
        for method, (x, _) in opened.traces().items():
            gradients = expected(digits_results, method, 0.1, 64, "gradients_per_worker")
            np.testing.assert_allclose(x, C * gradients.index + G * gradients, rtol=1e-6)
    before = opened.traces()
    opened.tab.get_by_label("seconds an aggregation").fill("-1")
    assert opened.tab.get_by_label("seconds an aggregation").get_attribute("aria-invalid") == "true"
    assert opened.traces() == before


def test_modelled_time_counts_every_aggregation_of_a_round(open_frame: Callable[..., Opened]) -> None:
    frame = made_frame({("sarah", 0.1, 64): 0.5, ("mime", 0.1, 64): 0.4})
    frame["aggregations"] = frame["method"].map({"sarah": 1, "mime": 2})
    shown = open_frame(frame)
    shown.choose("x-axis", "modelled time")
    for method, waits in (("sarah", 1), ("mime", 2)):
        gradients = expected(frame, method, 0.1, 64, "gradients_per_worker")
        np.testing.assert_allclose(shown.traces()[method][0], waits * gradients.index + 0.001 * gradients, rtol=1e-6)


def test_a_single_run_is_not_called_a_mean(open_frame: Callable[..., Opened]) -> None:
    for seeds, said in ((1, "One run each."), (2, "Mean over the seeds (n = 2)")):
        shown = open_frame(made_frame({("sarah", 0.1, 64): 0.5}, seeds=seeds))
        assert shown.tab.locator("#chart-caption").inner_text().startswith(said)


def test_filters_change_the_traces(opened: Opened, digits_results: pd.DataFrame) -> None:
    opened.tab.get_by_label("SCAFFOLD").uncheck()
    opened.tab.get_by_label("minibatch SGD").uncheck()
    left = ["local-sgd", "sarah", "bvr-l-sgd"]
    assert list(opened.traces()) == left == list(opened.traces("against-q")) == list(opened.traces("against-budget"))
    opened.choose("q", "0.85")
    opened.choose("budget", "32")
    opened.choose("criterion", "test accuracy")
    for method, (_, y) in opened.traces().items():
        np.testing.assert_allclose(y, expected(digits_results, method, 0.85, 32, "test_accuracy"), rtol=1e-6)
    assert opened.tab.locator("#against-q-title").inner_text() == "Against q, at budget 32"
    assert opened.tab.locator("#against-budget-title").inner_text() == "Against budget, at q 0.85"


def test_scale_and_band(opened: Opened) -> None:
    scale = "document.getElementById('chart').layout.yaxis.type"
    assert opened.tab.evaluate(scale) == "log"
    opened.choose("scale", "linear")
    assert opened.tab.evaluate(scale) == "linear"
    opened.choose("criterion", "gradient norm")
    assert opened.tab.evaluate(scale) == "log"
    opened.choose("criterion", "test accuracy")
    assert opened.tab.evaluate(scale) == "linear"
    assert list(opened.traces(kind="band")) == METHODS
    opened.tab.get_by_label("band ± standard deviation").uncheck()
    assert opened.traces(kind="band") == {}
    assert list(opened.traces()) == METHODS


def test_comparisons_are_means_of_final_values(opened: Opened, digits_results: pd.DataFrame) -> None:
    for method, (x, y) in opened.traces("against-q").items():
        assert x == [0.1, 0.85]
        ends = [expected(digits_results, method, q, 64, "train_loss").iloc[-1] for q in x]
        np.testing.assert_allclose(y, ends, rtol=1e-6)
    opened.choose("value of a run", "best over the run")
    rows = digits_results[(digits_results["role"] == "report") & (digits_results["q"] == 0.1)]
    for method, (x, y) in opened.traces("against-budget").items():
        best = rows[rows["method"] == method].groupby(["budget", "seed"])["train_loss"].min().groupby("budget").mean()
        np.testing.assert_allclose(y, [best[budget] for budget in x], rtol=1e-6)


def test_the_download_has_exactly_the_plotted_rows(opened: Opened) -> None:
    opened.choose("x-axis", "gradients per worker")
    opened.choose("criterion", "test loss")
    opened.choose("q", "0.85")
    opened.tab.get_by_label("Local SGD").uncheck()
    with opened.tab.expect_download() as waiting:
        opened.tab.get_by_role("button", name="Download the data shown").click()
    assert waiting.value.suggested_filename == "test_loss-against-gradients_per_worker.csv"
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    assert list(rows[0]) == [
        "method",
        "eta",
        "n",
        "q",
        "budget",
        "round",
        "gradients_per_worker",
        "test_loss_mean",
        "test_loss_sd",
    ]
    assert {(row["q"], row["budget"], row["n"]) for row in rows} == {("0.85", "64", "2")}
    plotted = opened.traces()
    assert list(dict.fromkeys(row["method"] for row in rows)) == list(plotted)
    for method, (x, y) in plotted.items():
        own = [row for row in rows if row["method"] == method]
        assert [float(row["gradients_per_worker"]) for row in own] == x
        assert [float(row["test_loss_mean"]) for row in own] == y


def test_tables_say_what_they_should(opened: Opened) -> None:
    text = opened.tab.locator("main").inner_text()
    assert "⚠ at the edge of the grid" in opened.tab.locator("#rates").inner_text()
    assert "no space left on device" in opened.tab.locator("#failures").inner_text()
    assert opened.tab.locator("#claims tbody tr").count() == 5
    assert opened.tab.locator("#ledger tbody tr").count() == 10
    for words in ("0123abc", "a test machine, 1 core", "chosen on other seeds than those reported"):
        assert words in text
    opened.tab.get_by_text("The experiment file (TOML)").click()
    assert opened.tab.locator("#made pre").inner_text() == META["config"]


def test_controls_have_names_and_the_keyboard_reaches_them(opened: Opened) -> None:
    unnamed = """[...document.querySelectorAll('input, select, button')]
        .filter(one => !(one.labels?.length || one.textContent.trim())).length"""
    assert opened.tab.evaluate(unnamed) == 0
    opened.tab.locator("#criterion").focus()
    opened.tab.keyboard.press("Tab")
    assert opened.tab.evaluate("document.activeElement.id") == "x-axis"
    opened.tab.keyboard.press("ArrowDown")
    assert opened.traces()["sarah"][0][-1] > 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(browser: Any, report: Path, scheme: str) -> None:
    page = Opened(browser, report, viewport=PHONE, is_mobile=True, has_touch=True, color_scheme=scheme)
    for label in ("rounds", "modelled time"):
        page.choose("x-axis", label)
        page.tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert page.tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    page.close()


def test_the_scheme_changes_the_colours(browser: Any, report: Path) -> None:
    page = Opened(browser, report, color_scheme="light")
    colours = "document.getElementById('chart').data.at(-1).line.color"
    assert page.tab.evaluate(colours) == "#000000"
    page.tab.emulate_media(color_scheme="dark")
    page.until(f"{colours} === '#FFFFFF'")
    page.close()


def test_the_least_there_can_be(open_frame: Callable[..., Opened]) -> None:
    """One method, one seed, no q, no test set, nothing known of how it was made."""
    frame = made_frame({("sarah", np.nan, 64): 0.5}, seeds=1, test_loss=np.nan, test_accuracy=np.nan)
    page = open_frame(frame)
    assert list(page.traces()) == ["sarah"]
    assert page.traces(kind="band") == {}
    assert page.tab.locator("#settings select").count() == 0
    assert "nothing to compare" in page.tab.locator("#comparisons").inner_text()
    assert page.tab.locator("#criterion option").all_inner_texts() == ["train loss", "train accuracy", "gradient norm"]
    assert "No run failed" in page.tab.locator("#failures").inner_text()
    assert page.tab.locator("#measured").count() == 0


def test_what_was_measured_is_drawn(open_frame: Callable[..., Opened]) -> None:
    frame = made_frame({("sarah", q, 64): 0.5 for q in (0.1, 0.85)})
    values = {"L": 20, "L_ahead": 15, "L_sample": 30, "zeta1": 2, "sigma2": 9}
    figures = {name: fr.Estimate(value, 0.1, 500) for name, value in values.items()}
    figures |= {"zeta_to_mean": fr.Estimate(0.7, 0, 40), "L_workers": (fr.Estimate(21, 0, 30), fr.Estimate(25, 1, 50))}
    measured = [
        {
            "dataset": "digits", "partition": "class-skew", "q": q, "round": round, "along": {"method": "sarah", "rounds": round} if round else {},
            "problem": "p", "made": f"2026-01-0{round % 6 + 1}",
            "measurement": fr.Measurement(1.0, zeta=fr.Estimate(10 * q + round), gradient_norm2=fr.Estimate(0.5), **figures).to_json(),
        }
        for round in (0, 5, 7)  # two trainings, of which the one to round 5 is the newer
        for q in (0.85, 0.1)
    ]  # fmt: skip
    for one in measured[::2]:
        del one["measurement"]["L_ahead"]  # as of an earlier version
    page = open_frame(frame, measured=measured)
    page.until("document.querySelector('#measured img').naturalWidth > 300")
    rows, costs = (page.tab.locator("#measured table").nth(i).locator("tbody tr").all_inner_texts() for i in (0, 1))
    assert [row.split("\t")[:2] for row in rows] == [
        ["q = 0.1", "0"],
        ["q = 0.1", "5"],
        ["q = 0.85", "0"],
        ["q = 0.85", "5"],
    ]
    assert rows[0].split("\t")[2:] == [
        "0.5", "20", "15 ± 0.1", "25 ± 1", "30", "1", "0.7", "2 ± 0.1", "9 ± 0.1", "0.05", "2,620"
    ]  # fmt: skip
    assert rows[2].split("\t")[3:5] == ["20", "–"]
    assert costs[0].split("\t") == ["q = 0.1", "0", "0", "500", "500", "80", "500", "0", "40", "500", "500"]
    assert costs[2].split("\t")[3:5] == ["500", "–"]
    assert "along a training by sarah" in page.tab.locator("#measured").inner_text()
    assert page.tab.get_by_role("link", name="Heterogeneity").count() == 1


def test_a_diverged_run_ends_its_curve_and_is_told(
    open_frame: Callable[..., Opened], digits_results: pd.DataFrame
) -> None:
    page = open_frame(diverge(digits_results, "report-scaffold-0.1-64-0.1-2", after=6))
    traces = page.traces()
    assert traces["scaffold"][0] == [0, 2, 4]
    assert traces["sarah"][0][-1] == 12
    assert "SCAFFOLD: 1 of 2 runs diverged" in page.tab.locator("#chart-caption").inner_text()
    assert "1 run diverged" in page.tab.locator("#failures").inner_text()
    for criterion in ("test accuracy", "gradient norm"):
        page.choose("criterion", criterion)
    page.choose("scale", "linear")


def test_a_choice_without_runs_says_so(open_frame: Callable[..., Opened]) -> None:
    split = made_frame({("sarah", 0.1, 64): 0.5, ("sarah", 0.85, 64): 0.6})
    even = made_frame({("sarah", np.nan, 64): 0.4}, partition="iid")
    page = open_frame(pd.concat([split, even]))
    page.choose("partition", "iid")
    assert page.tab.locator("#chart-caption").inner_text() == "There are no runs for this choice."
    page.choose("q", "none")
    assert list(page.traces()) == ["sarah"]


def test_names_cannot_break_the_page(open_frame: Callable[..., Opened]) -> None:
    evil = "</script><script>throw 1</script><img src=x onerror=alert(1)>"
    frame = made_frame({(evil, 0.1, 64): 0.5, ("sarah", 0.85, 64): 0.6}, dataset=evil)
    page = open_frame(frame, None, name=evil, description=evil, config=evil, failures=[{"run": evil, "method": evil}])
    assert page.tab.title() == evil
    assert list(page.traces()) == [evil]
    assert page.tab.locator("img").count() == 0


def test_a_loss_that_blows_up_does_not_press_the_others_together(open_frame: Callable[..., Opened]) -> None:
    calm = {("local-sgd", 0.1, 64): 1.0, ("bvr-l-sgd", 0.1, 64): 0.5}
    page = open_frame(made_frame({**calm, ("sarah", 0.1, 64): 1e9}))
    low, high = page.tab.evaluate("document.getElementById('chart').layout.yaxis.range")
    assert 10**low == pytest.approx(0.5, rel=0.05)
    assert 10**high == pytest.approx(2.4)
    assert "curves beyond it leave the chart" in page.tab.locator("#chart-caption").inner_text()


def test_a_run_whose_loss_more_than_doubled_is_told_and_not_drawn(open_frame: Callable[..., Opened]) -> None:
    calm = {(name, q, 64): 0.5 + 0.5 * (name == "sarah") for name in ("sarah", "bvr-l-sgd") for q in (0.1, 0.85)}
    page = open_frame(made_frame({**calm, ("local-sgd", 0.1, 64): 0.7, ("local-sgd", 0.85, 64): 1e9}))
    drawn = page.traces("against-q")
    assert drawn["local-sgd"][0] == [0.1]
    assert drawn["sarah"][0] == [0.1, 0.85]
    caption = page.tab.locator("#against-q-caption")
    assert "Without the diverged runs of Local SGD" in caption.inner_text()
    page.tab.get_by_label("Local SGD").uncheck()
    assert "diverged" not in caption.inner_text()


def test_the_claims_fit_a_desktop_with_two_settings_beside_them(open_frame: Callable[..., Opened]) -> None:
    losses = {(name, q, 64): 0.5 for name in METHODS for q in (0.1, 0.85)}
    frames = [
        made_frame(losses, rounds=rounds, budget_mode=mode).assign(run=lambda f, n=f"-{rounds}-{mode}": f["run"] + n)
        for rounds, mode in ((20, "paper"), (1000, "paper"), (1000, "strict"))
    ]
    page = open_frame(pd.concat(frames))
    wide, room = page.tab.locator("#claims div.scroll").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert wide <= room
