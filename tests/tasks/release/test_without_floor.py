"""A model that was accepted without a floor is published, and its verdict says so, its public card not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.params.schema import load_params, parameter_values
from tasks.release.publish import publish
from tasks.stage.errors import PublishError
from tests.places import ROOT
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.trained_checkout import make_checkout, write_gate

SAID = (
    "published without a floor or a baseline: set downstream.squad.gate.min_f1 or "
    "downstream.squad.gate.min_exact_match to require a score"
)
VERDICT = Path("metrics/squad-gate.json")


def judge(root: Path, min_f1: float | None) -> None:
    gate = {"min_f1": min_f1, "min_exact_match": None, "above_baseline": False}
    change_parameters(root, {"downstream": {"squad": {"gate": gate}}})
    write_gate(root)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = make_checkout(tmp_path / "checkout")
    judge(root, None)
    return root


def publish_here(root: Path) -> str:
    """The card."""
    publish(parameter_values(load_params(root / "params.yaml")), "squad", root)
    return (root / "published/podium-demo/README.md").read_text()


def test_the_verdict_says_so_and_the_card_does_not(checkout: Path) -> None:
    assert json.loads((checkout / VERDICT).read_text())["without_floor"] == SAID
    assert "without a floor" not in publish_here(checkout)
    judge(checkout, 85.0)
    assert "without_floor" not in json.loads((checkout / VERDICT).read_text())


def test_the_stage_says_so(checkout: Path) -> None:
    words = [sys.executable, "-m", "tasks.downstream.gate.gate", "squad"]
    done = subprocess.run(
        words, cwd=checkout, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"  {SAID}"


@pytest.mark.parametrize("text", [None, "published with a floor"])
def test_a_verdict_from_which_it_was_taken_is_refused(checkout: Path, text: str | None) -> None:
    verdict = json.loads((checkout / VERDICT).read_text())
    del verdict["without_floor"]
    (checkout / VERDICT).write_text(json.dumps(verdict | ({} if text is None else {"without_floor": text})))
    with pytest.raises(PublishError, match="differs from the checks of the evidence: without_floor"):
        publish_here(checkout)
