"""The section `publish` of params.yaml: where a release goes, and what of the data it holds."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tasks.project.param_sections import HubName, Name, Section, Word


class PublishParams(Section):
    target: Literal["local", "hub"]
    folder: Name
    repository: HubName | None
    private: bool
    review: bool
    examples: bool
    """Predictions and the evaluation's page, which quote the data, are published, too."""
    data_name: Name | None
    """How a card calls the questions of files or of a Hub data set."""
    license: Word
    language: Word

    @model_validator(mode="after")
    def _hub_needs_a_repository(self) -> PublishParams:
        if self.target == "hub" and not self.repository:
            raise ValueError("target: hub needs repository: user/name")
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
