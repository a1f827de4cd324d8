"""Licence, language and base model of a release, from the parameters or the base model's files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.params.schema import Params
from tasks.stage.errors import PublishError

REQUIRED = {"license": ("licence", "apache-2.0"), "language": ("language", "en")}
"""Fields that a card on the Hub must have: label and example."""


@dataclass(frozen=True)
class Origin:
    """Origin of a model on its card; None: unknown."""

    license: str | None = None
    language: str | list[str] | None = None
    base_model: str | None = None


def resolve_origin(params: Params, base: Mapping[str, Any] | None) -> Origin:
    """Return the values in the parameters, otherwise those in the base model's files.

    Args:
        base: result of `read_origin` for the base model's files; None: there is no base model.
    """
    stated, base = params.publish, base or {}
    return Origin(
        stated.license or base.get("license"),
        stated.language or base.get("language"),
        stated.base_model or base.get("name"),
    )


def require_origin(params: Params, origin: Origin) -> None:
    """Require a licence and a language for releases on the Hub.

    Raises:
        PublishError: one is unknown; the message names the parameters to set.
    """
    unknown = [name for name in REQUIRED if not getattr(origin, name)]
    if params.publish.target != "hub" or not unknown:
        return
    titles = " and ".join(f"the {REQUIRED[name][0]}" for name in unknown)
    settings = " ".join(f"--set publish.{name}={REQUIRED[name][1]}" for name in unknown)
    where = "" if params.base_model.source == "none" else ", and the base model's README.md does not state it"
    raise PublishError(
        f"{titles} of the model {'is' if len(unknown) == 1 else 'are'} not set{where}. A release on the Hub needs "
        f"both: set the correct values, such as {settings}. Nothing was published"
    )
