"""What a release is about: the answers to questions, or a task of GLUE; where the stages left its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.common import artifacts

PRETRAINING = ("pretrain-phase1", "pretrain-phase2")
PHASES = ("phase1", "phase2")
GLUE_PREFIX = "glue-"


@dataclass(frozen=True)
class Subject:
    """Paths are relative to the checkout."""

    model: Path
    predictions: Path
    metrics: Path
    gate: Path
    receipt: Path
    trainings: tuple[str, ...]
    """Their figures are metrics/<name>.json."""
    stages: Mapping[str, str]
    """finetune, evaluate and gate -> the stage of dvc.yaml."""
    glue_task: str = ""

    def has_verdict(self, name: str) -> bool:
        """Whether a data verdict of that name is about data of this release."""
        if not self.glue_task:
            return not name.startswith(GLUE_PREFIX)
        own = f"{GLUE_PREFIX}{self.glue_task}"
        return name in ("corpus", *PHASES, own, f"{own}-rows")

    def row_folders(self, root: Path) -> dict[str, Path]:
        """Name -> folder of the packed rows behind this release, those that are there."""
        if not self.glue_task:
            return {path.parent.name: path.parent for path in sorted((root / artifacts.ROWS).glob("*/manifest.json"))}
        own = sorted((root / artifacts.glue_rows_folder(self.glue_task)).glob("*/manifest.json"))
        found = {phase: root / artifacts.rows_folder(phase) for phase in PHASES}
        found |= {f"{GLUE_PREFIX}{self.glue_task}-{path.parent.name}": path.parent for path in own}
        return {name: folder for name, folder in found.items() if (folder / "manifest.json").is_file()}


QUESTIONS = Subject(
    model=artifacts.SQUAD_MODEL,
    predictions=artifacts.SQUAD_PREDICTIONS,
    metrics=artifacts.SQUAD_METRICS,
    gate=artifacts.GATE,
    receipt=artifacts.PUBLISH_RECEIPT,
    trainings=(*PRETRAINING, "finetune"),
    stages={"finetune": "finetune", "evaluate": "evaluate", "gate": "gate"},
)


def glue_subject(task: str) -> Subject:
    """The release of a GLUE task."""
    return Subject(
        model=artifacts.glue_model(task),
        predictions=artifacts.glue_evaluation(task) / "predictions.json",
        metrics=artifacts.glue_metrics(task),
        gate=artifacts.glue_metrics(task, "gate"),
        receipt=artifacts.publish_receipt(task),
        trainings=(*PRETRAINING, f"{GLUE_PREFIX}{task}-finetune"),
        stages={name: f"glue_{name}@{task}" for name in ("finetune", "evaluate", "gate")},
        glue_task=task,
    )
