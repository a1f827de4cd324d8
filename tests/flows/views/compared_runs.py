"""Runs to compare."""

import shutil

from ipu_model.core.files import write_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.stage import artifacts
from tests.places import ROOT
from tests.plans import prepare_own, resolved_params
from tests.tasks.downstream.entries import task_with
from tests.tasks.release.evaluated_checkout import write_checkout

ANSWERED = {"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"}
"""By `write_checkout`: q0 and q2 are right, q1 has an F1 of 2/3."""
TASK = ("squad", "report")


def made(project, name, *overrides, **answers):
    """A run of this name that was evaluated, with some other answers."""
    folder = prepare_own(project, resolved_params(project, None, list(overrides)), name)
    for part in ("flows", "tasks", "ipu_model", "dvc.yaml"):
        if (folder / part).is_dir():
            shutil.rmtree(folder / part)
    shutil.copy(ROOT / "dvc.yaml", folder / "dvc.yaml")
    write_checkout(folder)
    evaluate(task_with(*TASK, evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30)), folder)
    write_json(folder / artifacts.predictions_file("squad"), {**ANSWERED, **answers})
    for plot, losses in (("squad-finetune.csv", (4.0, 2.0)), ("squad-finetune-held-out.csv", (3.0,))):
        lines = [f"{10 * (step + 1)},{loss + len(answers)}" for step, loss in enumerate(losses)]
        (folder / "plots" / plot).write_text("\n".join(["step,loss", *lines]) + "\n")
    return folder
