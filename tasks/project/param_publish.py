"""The section `publish` of params.yaml: how releases are published, and what of the data they hold."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tasks.project.param_sections import Section, Word


class PublishParams(Section):
    """Where a release goes is said by its entry (EntryPublishParams)."""

    target: Literal["local", "hub"] = "local"
    private: bool = True
    review: bool = False
    examples: bool = False
    """Predictions and the evaluation's page, which quote the data, are published, too."""
    license: Word = "apache-2.0"
    language: Word = "en"

    @model_validator(mode="after")
    def _a_review_needs_the_hub(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
