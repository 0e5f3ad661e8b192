"""The results of a run over sites: a folder of results like any other, which `fewrounds report` reads."""

from __future__ import annotations

from typing import Any

from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store, now
from fewrounds.silo.settings import Silo


def save_results(store: Store, silo: Silo, run: str, outcome: dict[str, Any], began: str) -> None:
    import pandas

    spec = _spec(silo, outcome["l2"])
    settings = silo.method_to_run().settings()
    record = {
        "run": run,
        **spec.identity(),
        "outcome": outcome["outcome"],
        "reason": "",
        "K": settings.get("K"),
        "b": settings.get("b"),
        "method_settings": settings,
        "workers": len(silo.sites),
        "names": silo.sites,
        "ledger": outcome["ledger"],
        "began": began,
        "ended": now(),
    }
    store.save_run(run, record, pandas.DataFrame(outcome["rows"]))
    file = silo.model_dump(mode="json")
    description = f"Across {len(silo.sites)} sites: {', '.join(silo.sites)}."
    experiment = {**file, "description": description, "train": {**file["train"], "seed": [silo.train.seed]}}
    store.save_grid({run: spec}, experiment, [])


def saved_results(store: Store, silo: Silo, run: str) -> dict[str, Any] | None:
    """The outcome of this run, if it has ended and was of the same settings."""
    record = store.record(run)
    if record is None or not store.is_done(run):
        return None
    same = {**_spec(silo, record["model"]["l2"]).identity(), "method_settings": silo.method_to_run().settings()}
    if {**record, **same} != record or record["names"] != silo.sites:
        return None
    rows = store.history(run).to_dict("records")
    return {"outcome": record["outcome"], "rows": rows, "ledger": record["ledger"], "l2": record["model"]["l2"]}


def _spec(silo: Silo, l2: float) -> RunSpec:
    """The run in the terms of an experiment: the sites have split the data, and nobody has set a budget."""
    method = silo.method_to_run()
    own = {key: value for key, value in silo.method.items() if key not in ("eta", "K", "b")}
    nothing = dict.fromkeys(("q", "alpha", "shards_per_worker", "classes_per_worker", "seed"))
    return RunSpec(
        data={"source": silo.name},
        partition={"kind": "sites", "workers": len(silo.sites), **nothing},
        model={"kind": "site.py", "l2": l2},
        train={
            **silo.train.model_dump(mode="json", exclude={"compile"}),
            "eta": method.settings()["eta"],
            "budget": None,
            "budget_mode": None,
        },
        settings=own,
    )
