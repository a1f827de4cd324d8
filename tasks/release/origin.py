"""Licence, language and base model of a release: as a user states them, else as the base model's files do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.params.schema import Params
from tasks.stage.errors import PublishError

REQUIRED = {"license": ("licence", "apache-2.0"), "language": ("language", "en")}
"""What a card on the Hub must state: how it is called, and an example."""


@dataclass(frozen=True)
class Origin:
    """What a card states of where a model comes from; None: unknown."""

    license: str | None = None
    language: str | list[str] | None = None
    base_model: str | None = None


def resolve_origin(params: Params, base: Mapping[str, Any] | None) -> Origin:
    """Return what the parameters state, and else what the base model's files do.

    Args:
        params: their section `publish` is what a user states.
        base: what `read_origin` found in the base model's files; None: there are none.
    """
    stated, base = params.publish, base or {}
    return Origin(
        stated.license or base.get("license"),
        stated.language or base.get("language"),
        stated.base_model or base.get("name"),
    )


def require_origin(params: Params, origin: Origin) -> None:
    """Refuse to publish to the Hub without a licence and a language.

    Raises:
        PublishError: one is unknown; names the parameters that state it.
    """
    unknown = [name for name in REQUIRED if not getattr(origin, name)]
    if params.publish.target != "hub" or not unknown:
        return
    titles = " and ".join(f"the {REQUIRED[name][0]}" for name in unknown)
    settings = " ".join(f"--set publish.{name}={REQUIRED[name][1]}" for name in unknown)
    where = "" if params.base_model.source == "none" else ", and the base model's README.md does not state it"
    raise PublishError(
        f"{titles} of the model {'is' if len(unknown) == 1 else 'are'} not set{where}. A release on the Hub states "
        f"both: add what is true of the model, such as {settings}. Nothing was published"
    )
