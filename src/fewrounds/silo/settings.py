"""The coordinator's file: who takes part, where the server is, what is run, and what happens when a site is gone."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fewrounds.errors import SettingError
from fewrounds.experiment.config import Count, MethodName, Positive, Precision
from fewrounds.methods.base import Method, method
from fewrounds.settings import Section, load_settings

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("a name has letters, digits and hyphens, and begins and ends with a letter or digit")
    if value.lower() in ("server", "coordinator"):
        raise ValueError(f"no site can be named {value!r}: there is a kit of that name")
    return value


def _host(value: str) -> str:
    with contextlib.suppress(ValueError):
        ipaddress.IPv4Address(value)
        return value
    if not all(NAME.fullmatch(label) for label in value.split(".")):
        raise ValueError("give the name by which sites reach the server, or its IPv4 address")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Server(Section):
    """How sites reach the server."""

    host: Annotated[str, AfterValidator(_host)] = "localhost"
    """The name or address in the server's certificate, by which sites connect."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8002


class Train(Section):
    method: MethodName
    rounds: Count
    seed: int = 0
    weights: Literal["uniform", "size"] = "uniform"
    evaluate_every: Count | None = None
    compile: bool | Literal["auto"] = "auto"


class Loss(Section):
    """What happens when a site is gone."""

    on_loss: Literal["wait", "continue", "stop"] = "wait"
    """wait until it is back and go on with everyone; continue with the others; or stop, with its name"""
    least_sites: Count | None = None
    """continue: with how many, half of all by default"""
    answer_seconds: Positive = 600.0
    """A site that has not answered for so long is gone."""
    patience_seconds: Positive = 3600.0
    """wait: for so long; then stop"""


class Silo(Section):
    name: Name
    sites: Annotated[list[Name], Field(min_length=1)]
    server: Server = Server()
    train: Train
    method: dict[str, Any] = Field(default_factory=dict)
    """The method's settings: eta, K, b, …"""
    loss: Loss = Loss()
    measure: Precision = Precision()
    """For `fewrounds silo measure`."""

    @model_validator(mode="after")
    def _consistent(self) -> Silo:
        twice = [name for name in self.sites if self.sites.count(name) > 1]
        if twice:
            raise ValueError(f"sites: {twice[0]!r} is there twice")
        if self.server.host in self.sites:
            raise ValueError(f"server.host: {self.server.host!r} is the name of a site")
        if self.loss.least_sites is not None and self.loss.least_sites > len(self.sites):
            raise ValueError(f"loss.least_sites = {self.loss.least_sites}, but there are {len(self.sites)} sites")
        return self

    def method_to_run(self) -> Method:
        return method(self.train.method, **self.method)

    @property
    def least(self) -> int | None:
        """With how many sites a round may go on where others are lost; None if it may not."""
        return (self.loss.least_sites or -(-len(self.sites) // 2)) if self.loss.on_loss == "continue" else None


def load_silo(path: str | Path, overrides: list[str] | None = None) -> Silo:
    """Read and check the coordinator's file, the method's settings too."""
    silo = load_settings(path, Silo, overrides)
    if silo.method.get("eta") == "auto":
        raise SettingError(
            f"method.eta = 'auto': sites are measured by a command of its own; with any number here, `fewrounds silo "
            f"measure {path}`, then `fewrounds advise` on the file that it writes says which eta to put here"
        )
    method = silo.method_to_run()
    if silo.loss.on_loss == "continue" and method.remembers:
        raise SettingError(
            f"loss.on_loss = 'continue': {method.name} keeps a vector at every site, and goes to a wrong point once a "
            "round was done without one; use 'wait' or 'stop'"
        )
    return silo
