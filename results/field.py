"""Every method at one budget: experiments/field*.toml, and the folder field beside this file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pandas as pd
from tables import Content, Table, costs, counted, end, ends, every_step, hours, keep_figures, settings_of_methods

from fewrounds.experiment.archive import pack, read, unpack
from fewrounds.experiment.summary import write_page
from fewrounds.report.frames import finals, label_of, where
from fewrounds.report.marked import filled

HERE = Path(__file__).parent
FOLDER = HERE / "field"
PACKED = {name: FOLDER / f"{name}.parquet" for name in ("field", "field-twice", "field-smaller", "field-digits")}
FIGURES = [
    "train-loss-against-rounds",
    "test-accuracy-against-rounds",
    "train-loss-against-bytes",
    "train-loss-against-time",
]
VARIED = {"inexact-dane": "mu", "fedglomo": "beta", "mime": "beta", "mimelite": "beta", "ce-lsgd": "beta"}
"""The setting of a method that field-digits.toml has several values of."""
USUAL = {"inexact-dane": 0.1, "fedglomo": 0.2, "mime": 0.9, "mimelite": 0.9, "ce-lsgd": 0.1}
"""Its value in field.toml."""
LETTERS = {"mu": "μ", "beta": "β", "eta": "η"}


def pack_runs() -> None:
    for name, path in PACKED.items():
        print(f"{name}: {pack(HERE.parent / 'runs' / name, path)} runs")


def tables() -> dict[str, Table]:
    """The tables of field/README.md, by the name of their marks."""
    parts = {name: read(path) for name, path in PACKED.items()}
    (cifar10, content), (digits, varied) = parts["field"], parts["field-digits"]
    chosen = [choice for choice in varied["grid"]["chosen"] if usual(choice["method"], choice)]
    kept = digits[[usual(row["method"], row) for _, row in digits.iterrows()]]
    return {
        "facts": facts(parts),
        **shown("cifar10", cifar10, content["grid"]["chosen"], settings_of_methods(content)),
        "twice": ends(parts["field-twice"][0], "train_loss", "q", parts["field-twice"][1]["grid"]["chosen"]),
        "smaller": by_setting(parts["field-smaller"][0], {"sarah": "eta", "fedglomo": "eta"}),
        **shown("digits", kept, chosen, settings_of_methods(varied)),
        "settings": by_setting(digits, VARIED),
    }


def shown(name: str, frame: pd.DataFrame, chosen: list[dict], settings: dict[str, dict]) -> dict[str, Table]:
    return {
        f"loss {name}": ends(frame, "train_loss", "q", chosen),
        f"accuracy {name}": ends(frame, "test_accuracy", "q"),
        f"steps {name}": every_step(frame),
        f"cost {name}": costs(frame, settings),
    }


def usual(name: str, settings: dict | pd.Series) -> bool:
    """Whether these settings of a method are those that field.toml has."""
    return name not in VARIED or settings[VARIED[name]] == USUAL[name]


def by_setting(frame: pd.DataFrame, varied: dict[str, str]) -> Table:
    """Train loss at the last round for every value of what was varied, with the step size if that was not."""
    last = finals(frame[frame["role"] == "report"])
    qs, tuned = sorted(last["q"].unique()), "eta" not in varied.values()
    rows: Table = [("train loss", "setting", *(text for q in qs for text in (f"q = {q:g}", *["η"] * tuned)))]
    for name, setting in varied.items():
        for value, runs in where(last, {"method": name}).groupby(setting):
            cells = [label_of(name), f"{LETTERS[setting]} = {value:g}"]
            for q in qs:
                own = where(runs, {"q": q})
                cells += [end(own, "train_loss"), *[f"{own['eta'].iloc[0]:g}" if len(own) else "–"] * tuned]
            rows.append(tuple(cells))
    return rows


def facts(parts: dict[str, tuple[pd.DataFrame, Content]]) -> Table:
    rows: Table = [("file", "runs", "diverged", "hours of a core", "commit", "machine, versions")]
    for name, (frame, content) in parts.items():
        made = content["grid"]["environment"]
        runs, lost = counted(frame)
        versions = ", ".join(f"{package} {version}" for package, version in made["versions"].items())
        about = f"{made['machine']}; {versions}"
        rows.append((f"{name}.toml", runs, lost, f"{hours(content):.1f}", str(made["commit"])[:12], about))
    return rows


def build() -> None:
    """The tables of field/README.md, the page and the figures, from the packed files."""
    readme = FOLDER / "README.md"
    readme.write_text(filled(readme.read_text(), tables()))
    with tempfile.TemporaryDirectory() as folder:
        unpack(PACKED["field"], folder)
        shutil.copy(write_page(Path(folder), figures=False), FOLDER / "index.html")
    keep_figures({"": read(PACKED["field"])[0]}, FOLDER / "figures", FIGURES)
