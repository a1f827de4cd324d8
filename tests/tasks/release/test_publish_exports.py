"""Releases with exported files: what is published, what the card says of each file, and which one is preferred."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import read_json, sha256_of, write_json
from tasks.downstream.export.export import export_scores
from tasks.downstream.export.onnx_files import load_model, write_formats
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.release import verify as verification
from tasks.stage import artifacts
from tests.tasks import tiny_model
from tests.tasks.downstream.entries import change_parameters, part_of
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import ASKED, make_checkout, write_gate

ONNX, INT8 = artifacts.EXPORT_FILES.values()
RIGHT = {name: answer for name, (_, answer) in ASKED.items()}
WORSE = {**RIGHT, "q1": "lake"}
FIGURES = {"threads": 1, "length": 32, "calls": 100, "sequences_per_second": None}
FIGURES |= {"p50_ms": 1.5, "p95_ms": 2.0, "p99_ms": 2.25}
SPEED = {"hardware": "2 threads of X", "batch": 32}
SPEED |= {"speed": [{"name": name, **FIGURES} for name in ("model.safetensors", ONNX, INT8)]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:  # large enough for weights in 8 bits to be smaller
        patch.setattr(tiny_model, "POSITIONS", 8192)
        root = make_checkout(tmp_path_factory.mktemp("exported") / "checkout")
    write_formats(load_model(root / "models/squad"), ["onnx", "int8"], root / artifacts.exports_folder("squad"))
    return root


@pytest.fixture
def checkout(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


def release(root: Path, answers: Mapping[str, str], *, finite: bool = True, **how: Any) -> Path:
    """Publish a checkout whose int8 file gave these answers, as if the stage export had run."""
    formats = {"formats": ["onnx", "int8"]}
    change_parameters(root, {"downstream": {"squad": {"export": formats, "gate": {"min_f1": None}}}, "publish": how})
    task, examples = part_of(find_entry(load_params(root / artifacts.PARAMS), "squad"), "scores").read_all(root)
    ours, exports = task.outcomes_of(examples, {"dev": list(RIGHT.values())}), []
    for name, given in ((ONNX, RIGHT), (INT8, answers)):
        write_json(root / artifacts.exported_predictions("squad", name), given)
        outcomes = task.outcomes_of(examples, {"dev": [given.get(name) for name in ASKED]})
        sha256 = sha256_of(root / artifacts.exports_folder("squad") / name)
        about = {"name": name, "format": "int8" if name == INT8 else "onnx", "sha256": sha256}
        about |= {"transformers_difference": 1e-6, "logit_difference": 1e-6 if finite or name == ONNX else None}
        exports.append({**about, **export_scores(task, task.baseline(examples), outcomes, ours)})
    write_json(root / artifacts.metrics_file("squad", "export"), {"exports": exports})
    write_json(root / artifacts.measurements_file("squad", "export"), SPEED)
    write_gate(root)
    publish_here(root)
    return root / "published/podium-demo"


def rows(folder: Path) -> list[str]:
    section = (folder / "README.md").read_text().partition("\n## Exported files\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*`.* (?:accepted|rejected).*) \|$", section, re.MULTILINE)


def checks(folder: Path) -> list[verification.ReleaseCheck]:
    known = {check.name: check for check in verification.verify(verification.ReceivedRelease(folder))}
    return [known["card"], known["exports"]]


@pytest.mark.soak
def test_all_accepted_files_are_published_attested_and_the_card_runs_the_smallest(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("OpenSSL", reason="model-signing needs it and does not declare it")
    pytest.importorskip("model_signing")
    from tests.tasks.release.signed import write_key

    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(write_key(checkout / "ours.pem")))
    folder = release(checkout, RIGHT, prefer="smallest", signing="key")
    stated = read_json(folder / "attestation.json")["predicate"]
    assert stated["preferred_file"] == INT8
    assert stated["exports"][INT8]["bytes"] == (folder / INT8).stat().st_size
    assert (folder / ONNX).is_file()
    assert read_json(folder / "podium.json")["preferred_file"] == INT8
    assert read_json(folder / "config.json")["podium"]["preferred_file"] == INT8
    shown = rows(folder)
    assert [row.split("`")[1] for row in shown] == [INT8, "model.safetensors", ONNX]
    size = (folder / INT8).stat().st_size / 1e6
    assert shown[0].startswith(f"`{INT8}` | {size:.1f} | 100.00 | ")
    assert "| 0.00 (0.00 to 0.00) | accepted" in shown[0]
    card = (folder / "README.md").read_text()
    assert f"Preferred: `{INT8}`" in card
    assert f"| `{ONNX}` | 1 | 32 | 100 | 1.50 | 2.00 | 2.25 | not measured |" in card
    [script] = [code for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "onnxruntime" in code]
    assert f"/{INT8}" in script
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in done.stdout.splitlines() if "logits" in line] == ["start_logits", "end_logits"]
    assert [check.result for check in checks(folder)] == ["ok", "ok"]
    (folder / "README.md").write_text(card.replace("| 100.00 | ", "| 110.00 | ").replace("accepted |", "rejected |"))
    assert checks(folder)[0].result == "failed"


def test_a_file_that_may_be_worse_is_published_but_not_preferred(checkout: Path) -> None:
    folder = release(checkout, WORSE)
    assert not (folder / "podium.json").exists(), "nothing was preferred"
    write_json(checkout / artifacts.measurements_file("squad", "export"), {**SPEED, "hardware": "4 threads of Y"})
    assert publish_here(checkout)["unchanged"]
    folder = release(checkout, WORSE, prefer="smallest")
    assert (folder / INT8).is_file()
    sizes = {name: (folder / name).stat().st_size for name in ("model.safetensors", ONNX)}
    assert read_json(folder / "podium.json")["preferred_file"] == min(sizes, key=sizes.__getitem__)
    verdict = read_json(checkout / "metrics/squad-gate.json")["exports"][INT8]
    assert (verdict["accepted"], verdict["not_worse"]) == (True, False)
    assert verdict["differences"]["exact_match"]["low"] < -1 <= verdict["differences"]["exact_match"]["high"]


def test_a_rejected_file_is_not_published_and_the_card_says_why(checkout: Path) -> None:
    folder = release(checkout, {"q1": RIGHT["q1"]}, finite=False, prefer="smallest")
    assert (folder / ONNX).is_file()
    assert not (folder / INT8).exists()
    [row] = [row for row in rows(folder) if INT8 in row]
    assert "rejected, not published; " in row
    assert "logits: not finite, required finite; predictions_complete: 1, required 2" in row
    assert read_json(folder / "podium.json")["preferred_file"] != INT8
