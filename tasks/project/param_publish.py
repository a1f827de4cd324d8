"""The section `publish` of params.yaml: how releases are published, and what of the data they hold."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tasks.project.param_sections import Section, Word


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
    license: Word = "apache-2.0"
    """Licence of the model on its card."""
    language: Word = "en"
    """Language of the model on its card."""

    @model_validator(mode="after")
    def _a_review_needs_the_hub(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
