"""A checkout for a gate to decide on."""

from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.subject import make_subject
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.params.schema import validate_params
from tasks.stage import artifacts
from tests.tasks.downstream.entries import task_with, values_with
from tests.tasks.release.evaluated_checkout import write_checkout

SUBJECT = make_subject(task_with("squad"), validate_params(values_with()))
VERDICTS, TRAININGS = SUBJECT.verdicts, SUBJECT.trainings
LIMITS: dict[str, Any] = {
    "min_f1": 85.0,
    "released": "inputs/released",
    "max_f1_drop": 0.0,
    "max_exact_match_drop": 0.0,
}


def decide_on(checkout: Path, **limits: Any) -> dict[str, Any]:
    return gate(values_with({"squad": {"gate": {**LIMITS, **limits}}}), "squad", checkout)


@pytest.fixture(name="checkout")
def passing_checkout(tmp_path: Path) -> Path:
    """A checkout whose model passes: f1 88.8889 on three questions."""
    write_checkout(tmp_path)
    evaluate(task_with("squad", "report", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30)), tmp_path)
    for name in VERDICTS:
        write_json(tmp_path / artifacts.validation_report(name), {"data": name, "valid": True})
    for name in TRAININGS:
        write_json(tmp_path / "metrics" / f"{name}.json", {"final_loss": 0.5, "steps": 10})
    return tmp_path
