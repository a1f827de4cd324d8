"""A small checkout that looks as if every stage up to the gate had run; the model is random and tiny."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.common import artifacts
from tasks.common.params import Params, check
from tasks.common.strict_yaml import read_yaml
from tasks.tokenizer_files import Vocabulary, write_tokenizer
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

PROJECT = Path(__file__).resolve().parents[2]
WORDS = [
    "where", "does", "the", "river", "rise", "?", "in", "northern", "hills", "and", "ends", "a", "lake", ".",
]  # fmt: skip


def make_checkout(root: Path, *, seed: int = 0, accepted: bool = True) -> Path:
    """Fill `root` with model, tokenizer, predictions, metrics, gate verdict, reports and parameters."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_bytes((PROJECT / "params.yaml").read_bytes())
    (root / "dvc.lock").write_text("schema: '2.0'\n", encoding="utf-8")
    (root / artifacts.TOKENIZER).mkdir(parents=True)
    write_tokenizer(Vocabulary((*SPECIAL, *WORDS), lowercase=True), 512, root / artifacts.TOKENIZER)
    write_model(root, seed)
    _json(root / artifacts.SQUAD_PREDICTIONS, {"q1": "northern hills", "q2": "a lake"})
    _json(root / artifacts.SQUAD_METRICS, METRICS)
    _json(
        root / artifacts.validation_report("corpus"),
        {"data": "corpus", "valid": True, "rows": 12, "checks": [{"name": "no nulls", "ok": True}]},
    )
    _json(
        root / artifacts.rows_folder("squad-train") / "manifest.json",
        {"rows": 40, "sequences": 100, "real_tokens": 4321, "row_length": 128},
    )
    _json(
        root / artifacts.METRICS / "finetune.json",
        {"steps": 500, "final_loss": 0.4321, "runtime": "cpu", "precision": "fp32", "train_seconds": 12.5},
    )
    write_gate(root, accepted=accepted)
    return root


METRICS: dict[str, Any] = {
    "exact_match": 91.2, "exact_match_low": 89.0, "exact_match_high": 93.1,
    "f1": 94.5678, "f1_low": 93.0, "f1_high": 96.0, "total": 1000,
}  # fmt: skip


def write_gate(root: Path, *, accepted: bool = True) -> None:
    """A verdict about the files that lie in `root` now."""
    _json(
        root / artifacts.GATE,
        {
            "accepted": accepted,
            "reasons": [] if accepted else ["f1 12.30 is under the floor 85.00"],
            "checks": [{"name": "f1", "ok": accepted, "found": 94.5678 if accepted else 12.3, "required": 85.0}],
            "metrics": {"exact_match": METRICS["exact_match"], "f1": METRICS["f1"]},
            "model_sha256": artifacts.sha256_of(root / artifacts.SQUAD_MODEL / "model.safetensors"),
            "predictions_sha256": artifacts.sha256_of(root / artifacts.SQUAD_PREDICTIONS),
        },
    )


def write_model(root: Path, seed: int) -> None:
    """A two-layer model with random weights from `seed`, trained (it says) with the checkout's tokenizer."""
    folder = write_tiny_model(root / artifacts.SQUAD_MODEL, WORDS, seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):  # a model of this project lies apart from its tokenizer
        (folder / name).unlink()
    digest = artifacts.sha256_of(root / artifacts.TOKENIZER / "tokenizer.json")
    _json(folder / "podium.json", {"tokenizer_sha256": digest, "kind": "finetune", "steps": 500, "seed": 5})


def params_with(**publish: Any) -> Params:
    """The project's params.yaml with other publish values, and a phase 1 that tests can state."""
    values = read_yaml(PROJECT / "params.yaml")
    values["publish"].update(publish)
    values["pretrain"]["phase1"].update(steps=600, global_batch_size=64, learning_rate=2e-3, warmup_fraction=0.1)
    return check(values)


def _json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
