"""Sections of params.yaml about GLUE: which tasks, from where, in which rows, and what is released."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import HubName, Name, Positive, ReleaseParams, Section

GlueTask = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class GlueParams(Section):
    tasks: list[GlueTask]
    source: Literal["files", "hub"]
    path: Name
    dataset: str | None
    dataset_revision: str | None
    min_examples: Positive

    @model_validator(mode="after")
    def _each_task_once(self) -> GlueParams:
        twice = sorted({task for task in self.tasks if self.tasks.count(task) > 1})
        if twice:
            raise ValueError(f"tasks={self.tasks} names {', '.join(twice)} more than once")
        if self.source == "hub" and not self.dataset:
            raise ValueError("source: hub needs dataset: user/name")
        return self


class GlueGateParams(ReleaseParams):
    min_score: Annotated[float, Field(ge=-100, le=100)] | None
    max_drop: Annotated[float, Field(ge=0, le=100)]


class GluePublishParams(Section):
    folder: Name
    repository: HubName | None
