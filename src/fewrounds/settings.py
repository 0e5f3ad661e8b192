"""Files of settings: TOML, checked key by key, with one line for the first mistake."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fewrounds.errors import SettingError, nearest


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Settings = TypeVar("Settings", bound=Section)


def load_settings(path: str | Path, kind: type[Settings], overrides: list[str] | None = None) -> Settings:
    """Read and check a file; `overrides` are of the form section.key=value."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: {error}") from None
    for override in overrides or []:
        _apply(content, override)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise SettingError(f"{path}: {explain(error, kind)}") from None


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise SettingError(f"--set {override!r}: expected section.key=value, such as train.rounds=100")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    place = content
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise SettingError(f"--set {override!r}: {part!r} is no section")
    place[parts[-1]] = parsed


def explain(error: ValidationError, kind: type[Section]) -> str:
    """The first mistake in one line: the key, what it is, and what would be right."""
    errors = error.errors(include_url=False)
    # A key that is misspelt is also missing: say the first.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in first["loc"] if not isinstance(part, int) and part != "[key]"]
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        section: Any = kind
        for part in place[:-1]:
            section = section.model_fields[part].annotation
            section = next((a for a in getattr(section, "__args__", ()) if isinstance(a, type)), section)
        return f"unknown key {key!r}; {nearest(place[-1], section.model_fields)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "dict_type"):
        message = "a section is expected here, [section] with keys below it"
    message = message[0].lower() + message[1:]
    if not key:
        return message
    given = first["input"]
    shown = "" if isinstance(given, dict) else f" = {given!r}"
    return f"{key}{shown}: {message}"
