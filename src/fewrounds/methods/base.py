"""What a method is: two functions, `init` and `round`, and what its settings may be. The registry by name."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from fewrounds.errors import SettingError, finite_number, fraction, nearest, whole_number
from fewrounds.interfaces import Engine


@dataclass(frozen=True)
class State:
    """What a method carries from one round to the next, and a checkpoint keeps: tensors, numbers and None only.
    A method with more to carry subclasses it with more fields."""

    x: Tensor
    """The global iterate after the last round."""


@dataclass(frozen=True)
class Method(ABC):
    """A method with its settings. Subclasses are frozen dataclasses whose fields are those settings.

    Fields named eta, eta_g or eta_dane must be positive and finite, mu finite and not below 0, beta from 0 to 1; fields
    named K, b, b_tilde, T or participants whole numbers from 1 on.
    """

    name: ClassVar[str] = ""
    """The name in the registry."""
    local: ClassVar[bool]
    """Whether a worker takes several steps a round (K steps of batch b) or one (batch b)."""
    remembers: ClassVar[bool] = False
    """Whether its workers keep vectors from round to round."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The words that a setting may be."""

    eta: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, self._checked(field.name, value))

    def _checked(self, name: str, value: Any) -> Any:
        if name in ("eta", "eta_g", "eta_dane"):
            return finite_number(f"{self.name}: {name}", value, positive=True)
        if name == "mu":
            return finite_number(f"{self.name}: mu", value)
        if name == "beta":
            return fraction(f"{self.name}: beta", value)
        if name in ("K", "b", "b_tilde", "T", "participants"):
            return whole_number(f"{self.name}: {name}", value)
        if name in self.choices and value not in self.choices[name]:
            known = " or ".join(repr(choice) for choice in self.choices[name])
            raise SettingError(f"{self.name}: {name} = {value!r}: must be {known}")
        return value

    @abstractmethod
    def init(self, x0: Tensor) -> State:
        """The state before the first round."""

    @abstractmethod
    def round(self, s: Any, engine: Engine) -> State:
        """One communication round."""

    def output(self, s: Any) -> Tensor:
        """The method's answer; the last iterate unless its publication says otherwise."""
        x: Tensor = s.x
        return x

    def check(self, sizes: Sequence[float]) -> None:  # noqa: B027 (most methods run on anything)
        """Refuse workers this method cannot run on."""

    @abstractmethod
    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        """Single-sample gradients a worker computes in a round, averaged over workers and rounds."""

    @property
    def aggregations(self) -> int:
        """How often a round waits for vectors from all who take part: once, as the paper counts rounds, or more."""
        return 1

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        """What `for_budget` sets besides K and b, unless it is given; the budget is that of one who takes part."""
        return {}

    def stage_rounds(self, sizes: Sequence[float]) -> int:
        """T: the rounds of a stage; 1 for methods that have none."""
        return 1

    def settings(self) -> dict[str, Any]:
        """The settings by name, as a checkpoint or a table shows them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


REGISTRY: dict[str, type[Method]] = {}

AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Enrol a method under a name; the contract suite then runs on it too."""

    def enrol(method: AnyMethod) -> AnyMethod:
        if name in REGISTRY and REGISTRY[name].__qualname__ != method.__qualname__:
            raise SettingError(f"there is a method {name!r} already: {REGISTRY[name].__qualname__}")
        method.name = name
        REGISTRY[name] = method
        return method

    return enrol


def method_class(name: str) -> type[Method]:
    """The method of this name."""
    if name not in REGISTRY:
        raise SettingError(f"there is no method {name!r}; {nearest(str(name), REGISTRY)}")
    return REGISTRY[name]


def method(name: str, **settings: Any) -> Method:
    """The method of this name with these settings: `method("local-sgd", eta=0.1, K=16, b=16)`."""
    cls = method_class(name)
    known = {field.name: field for field in dataclasses.fields(cls)}
    for key in settings:
        if key not in known:
            raise SettingError(f"{name} has no setting {key!r}; {nearest(key, known)}")
    for key, field in known.items():
        if key not in settings and field.default is dataclasses.MISSING:
            raise SettingError(f"{name} needs the setting {key!r}")
    return cls(**settings)


def mean_size(sizes: Sequence[float]) -> float:
    """The mean number of samples of a worker; infinite if one of them is a stream."""
    return sum(sizes) / len(sizes)


def check_participants(name: str, participants: int | None, sizes: Sequence[float]) -> None:
    if participants is not None and participants > len(sizes):
        raise SettingError(f"{name}: participants = {participants}, but there are {len(sizes)} workers")
