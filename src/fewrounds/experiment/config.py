"""Experiment files: TOML, checked key by key. A list is a grid axis."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fewrounds.errors import SettingError, nearest
from fewrounds.methods.base import REGISTRY, method_class
from fewrounds.settings import Section, load_settings
from fewrounds.theory.estimate import FIGURES
from fewrounds.theory.limits import check_advised

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    if value == []:
        raise ValueError("an empty list: give at least one value")
    return value if isinstance(value, list) else [value]


Axis = Annotated[list[T], BeforeValidator(_as_list)]
"""One value, or a list of them: then the experiment runs for each."""


def _known_method(name: str) -> str:
    if name not in REGISTRY:
        raise ValueError(f"there is no method {name!r}; {nearest(name, REGISTRY)}")
    return name


def _advised_method(name: str) -> str:
    try:
        check_advised(_known_method(name))
    except SettingError as error:
        raise ValueError(str(error)) from None
    return name


def _known_figure(name: str) -> str:
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}; {nearest(name, FIGURES)}")
    return name


MethodName = Annotated[str, AfterValidator(_known_method)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Data(Section):
    """Where the samples come from."""

    source: Axis[str] = Field(default=["digits"])
    label: str | None = None
    """The column of a table that holds the label."""
    test: str | None = None
    """A second file with the test samples."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    id_column: str | None = None
    """The column that says whose a sample is, for the natural split."""
    equalise: bool = True
    """Keep equally many samples of every class, as the paper does."""
    limit: Count | None = None
    """Keep only this many training samples of every class."""


class Partition(Section):
    """How they are split over the workers."""

    kind: Axis[Literal["class-skew", "iid", "dirichlet", "shards", "pathological", "natural"]] = Field(
        default=["class-skew"]
    )
    workers: Axis[Count] | None = None
    """The number of workers; one a class by default with class-skew."""
    q: Axis[Fraction] | None = None
    alpha: Axis[Positive] | None = None
    shards_per_worker: Axis[Count] | None = None
    classes_per_worker: Axis[Count] | None = None
    seed: Axis[Annotated[int, Field(ge=0)]] = Field(default=[0])


class Model(Section):
    """What is trained."""

    kind: str = "mlp"
    """"mlp", "cnn", or "package.module:function" for a function(shape, classes, seed) that returns a torch module."""
    hidden: list[Count] = Field(default=[100])
    activation: Literal["softplus", "relu", "tanh"] = "softplus"
    l2: Axis[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default=[0.0])


class Train(Section):
    """How."""

    method: Axis[MethodName]
    rounds: Axis[Count]
    eta: Literal["auto"] | Axis[Positive] | None = None
    """Step sizes that are run as they are; "auto" for the advised one; leave it out to have [tuning] choose."""
    eta_from: str | None = None
    """A folder of results: each method runs with the step size that was chosen there for it and the same split."""
    budget: Axis[Count] | None = None
    """Single-sample gradients per worker and round; sets K and b."""
    budget_mode: Axis[Literal["paper", "strict"]] = Field(default=["paper"])
    seed: Axis[int] = Field(default=[1])
    weights: Axis[Literal["uniform", "size"]] = Field(default=["uniform"])
    evaluate_every: Count | None = None
    dtype: Literal["float32", "float64"] = "float32"


class Tuning(Section):
    """The choice of eta: for every method, split and budget, on seeds of its own."""

    eta: Annotated[list[Positive], Field(min_length=1)]
    more: dict[MethodName, Axis[Positive]] = Field(default={})
    """Further values for single methods, such as one beyond the edge that a method has chosen."""
    seed: Axis[int] = Field(default=[0])
    rule: str = "paper"
    """"paper", "final-loss", or a column of the history with a direction, such as "test_accuracy:max"."""
    last: Count = 100
    """How many of the last rounds the paper's rule looks at."""
    evaluate_every: Count | None = None
    """For the tuning runs, which need no curves; by default the same as for the others."""


class Precision(Section):
    """How precisely to measure, and at what cost (see `fewrounds.measure`)."""

    n: Count | Literal["all"] = 1000
    """Samples of each worker that stand for its data in gradients and Hessians."""
    samples: Annotated[int, Field(ge=2)] = 256
    smooth_samples: Count = 8
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.9
    tolerance: Positive | None = None
    all_pairs: bool | None = None

    def settings(self) -> dict[str, Any]:
        """As `fewrounds.theory.measure.How` takes them."""
        fields = {name: getattr(self, name) for name in Precision.model_fields}
        return {**fields, "n": None if self.n == "all" else self.n}


class Measure(Precision):
    """What `fewrounds measure` does, and eta = "auto" at the start."""

    rounds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """At which rounds of a training; by default the start, and a hundredth, a tenth and all of train.rounds."""
    method: Annotated[str, AfterValidator(_advised_method)] = "minibatch-sgd"
    """Whose training it is, with the step size that is advised for it."""
    only: Annotated[list[Annotated[str, AfterValidator(_known_figure)]], Field(min_length=1)] | None = None
    """The figures that `fewrounds measure` is to have; by default all. Advice takes what it needs whatever is here."""


class Track(Section):
    """Also log the results elsewhere."""

    tensorboard: bool = False
    mlflow: str | None = None
    """The tracking URI, such as a folder."""


class Experiment(Section):
    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: str = ""
    data: Data = Data()
    partition: Partition = Partition()
    model: Model = Model()
    train: Train
    methods: dict[MethodName, dict[str, Any]] = Field(default={})
    """Settings of single methods: [methods.bvr-l-sgd] form = "theory". A list is a grid axis here, too."""
    tuning: Tuning | None = None
    measure: Measure = Measure()
    track: Track = Track()

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        if [self.tuning, self.train.eta, self.train.eta_from].count(None) != 2:
            raise ValueError("give either train.eta, train.eta_from or a [tuning] section, which chooses it")
        if self.train.eta == "auto":
            for name in self.train.method:
                _advised_method(name)
        for name in self.tuning.more if self.tuning else ():
            if name not in self.train.method:
                raise ValueError(f"tuning.more.{name}: {name} is not in train.method")
        if self.tuning is not None and set(self.tuning.seed) & set(self.train.seed):
            both = sorted(set(self.tuning.seed) & set(self.train.seed))
            raise ValueError(f"tuning.seed and train.seed share {both}: tuning and reported runs need different seeds")
        if "class-skew" in self.partition.kind and self.partition.q is None:
            raise ValueError("partition.q is missing: the class-skew split needs it")
        for name, settings in self.methods.items():
            known = {field.name for field in dataclasses.fields(method_class(name))}
            for key in settings:
                if key == "eta":
                    raise ValueError(f"methods.{name}.eta: step sizes belong in train.eta or tuning.eta")
                if key not in known:
                    raise ValueError(f"methods.{name}: unknown key {key!r}; {nearest(key, known)}")
                if settings[key] == []:
                    raise ValueError(f"methods.{name}.{key} = []: an empty list: give at least one value")
        return self

    @property
    def chooses_eta(self) -> bool:
        """Whether step sizes are not known before something has been run or measured."""
        return self.tuning is not None or self.train.eta == "auto"


def load_experiment(path: str | Path, overrides: list[str] | None = None) -> Experiment:
    """Read and check an experiment file; `overrides` are of the form section.key=value."""
    return load_settings(path, Experiment, overrides)
