"""Which stages a run has, and in which order. Knows nothing of Prefect, so that it is imported at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tasks.project.errors import ParamsError

PLAN = (
    "corpus",
    "validate@corpus",
    "questions",
    "validate@questions",
    "tokenizer",
    "pretrain_rows@phase1",
    "validate@phase1",
    "pretrain_rows@phase2",
    "validate@phase2",
    "squad_rows@train",
    "validate@squad-train",
    "squad_rows@dev",
    "validate@squad-dev",
    "base_model",
    "compile@phase1",
    "compile@phase2",
    "compile@finetune",
    "compile@predict",
    "pretrain@phase1",
    "pretrain@phase2",
    "finetune",
    "predict",
    "evaluate",
    "gate",
)
"""Every stage of dvc.yaml, each after what it needs: all data are made and checked, and all programs built, before
training starts."""

GLUE_DATA = ("glue_data", "validate_glue", "glue_rows", "validate_glue_rows", "compile_glue")
GLUE_MODELS = ("glue_finetune", "glue_predict", "glue_evaluate", "glue_gate")
"""Stages of every task of `glue.tasks`, in order: before training starts, and after pre-training."""
PUBLISH = "publish"
"""The last line of a run: no stage of dvc.yaml, as what it changes is outside."""
SHARE = "row_share"
"""Stages of this name need nothing of each other."""
FINETUNING = ("questions", "squad", "finetune", "predict", "evaluate", "gate")
"""Words in the names of stages that pre-training does not need."""
Part = Literal["all", "pretraining", "finetuning", "glue"]


def plan_of(part: Part, tasks: Sequence[str] = ()) -> list[str]:
    """The stages of a part of the plan.

    Args:
        part: `pretraining`, what only that needs; `finetuning`, the others; `glue`, pre-training and GLUE without
            questions; or all.
        tasks: of GLUE, `glue.tasks`.

    Raises:
        ParamsError: `glue` without a task.
    """
    if part == "glue" and not tasks:
        raise ParamsError("the part glue needs tasks: set glue.tasks, for example --set glue.tasks=[sst2]")
    before, after = ([f"{stage}@{task}" for task in tasks for stage in names] for names in (GLUE_DATA, GLUE_MODELS))
    pretraining = [stage for stage in PLAN if not any(word in stage for word in FINETUNING)]
    if part == "pretraining":
        return pretraining
    if part == "finetuning":
        return [*(stage for stage in PLAN if stage not in pretraining), *before, *after]
    plan = pretraining if part == "glue" else list(PLAN)
    start = next((index for index, stage in enumerate(plan) if stage.startswith("pretrain@")), len(plan))
    return [*plan[:start], *before, *plan[start:], *after]


def with_parity(plan: Sequence[str], places: Sequence[str]) -> list[str]:
    """The plan with a stage for each of `parity.against`, where it predicts."""
    more = [f"parity@{place}" for place in places]
    at = plan.index("predict") + 1 if "predict" in plan else len(plan)
    return [*plan[:at], *(more if "predict" in plan else []), *plan[at:]]


def with_shares(plan: Sequence[str], shares: Sequence[int]) -> list[str]:
    """The plan with a stage for each of `pretrain_rows.shares`, before their shards are joined."""
    at = next((index for index, stage in enumerate(plan) if stage.startswith("pretrain_rows@")), len(plan))
    more = [f"{SHARE}@{share}" for share in shares]
    return [*plan[:at], *(more if at < len(plan) else []), *plan[at:]]


def of_params(values: dict[str, Any], part: Part) -> list[str]:
    """The stages that a run of these parameters brings up to date, in order; publish aside.

    Args:
        values: the resolved parameters.
        part: see `plan_of`.

    Raises:
        ParamsError: see `plan_of`.
    """
    plan = with_parity(plan_of(part, values["glue"]["tasks"]), values["parity"]["against"])
    return with_shares(plan, values["pretrain_rows"]["shares"])


def is_gate(stage: str) -> bool:
    """Whether a stage decides what is published."""
    return stage == "gate" or stage.startswith("glue_gate@")
