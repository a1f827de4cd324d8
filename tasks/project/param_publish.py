"""The section `publish` of params.yaml: how releases are published, and what of the data they hold."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tasks.project.param_sections import HubName, Section, Word


class PublishParams(Section):
    """Where a release goes is said by its entry (EntryPublishParams)."""

    target: Literal["local", "hub"] = "local"
    """local: a folder in Hub layout; hub: a Hugging Face repository."""
    private: bool = True
    """A repository that is created is private, and a public one is refused."""
    review: bool = False
    """Open a pull request on the Hub; the model is released (tagged) once that is merged and published again."""
    examples: bool = False
    """Predictions and the page of the evaluation, which quote your data, are published, too."""
    license: Word | None = None
    """Licence of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    language: Word | None = None
    """Language of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    base_model: HubName | None = None
    """Name of the base model on the card, user/name on the Hub; null: base_model.repository, or what config.json or
    README.md of the base model state, or none."""

    @model_validator(mode="after")
    def _a_review_needs_the_hub(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
