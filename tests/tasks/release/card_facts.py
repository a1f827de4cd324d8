"""Facts for a card, and the card of them."""

from typing import Any

from tasks.downstream.card import CardFacts
from tasks.downstream.kind import KINDS
from tasks.params.schema import parameter_values
from tests.tasks.downstream.entries import task_with
from tests.tasks.trained_checkout import params_with

CONFIG = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 2000}
CHECKS = [{"name": "f1", "ok": True, "found": 94.5678, "required": 85.0}]
METRICS: dict[str, Any] = {"exact_match": 91.2, "exact_match_low": 89.0, "exact_match_high": 93.1, "total": 1000}
METRICS |= {"f1": 94.5678, "f1_low": 93.0, "f1_high": 96.0}
PHASE1 = {"steps": 600, "final_loss": 2.34567, "runtime": "cpu", "precision": "fp32"}
ORIGIN: dict[str, Any] = {
    "git": {"revision": "f" * 40, "dirty": True, "changed": ["tasks/gate.py"]},
    "stages_sha256": "a" * 64,
    "parameters_sha256": "b" * 64,
    "data": {
        "verdicts": {"corpus": {"valid": True}, "squad": {"valid": True}},
        "rows": {"phase1": {"sequences": 123456, "real_tokens": 7890123}},
    },
    "base_model": None,
    "training": {"pretrain-phase1": PHASE1, "pretrain-phase2": {"steps": 200}},
}
BEFORE = {"mlm_loss": 2.5, "perplexity": 12.18, "change": -0.5, "change_low": -0.6, "change_high": -0.4}
BEFORE |= {"groups": 9, "documents": 9, "new_head": False}
FURTHER = {**PHASE1, "held_out": {"rows": 40, "mlm_loss": 2.0, "perplexity": 7.39, "before": BEFORE}}
TRAININGS = {"pretrain-phase1": FURTHER, "pretrain-phase2": {"steps": 200}, "squad-finetune": {}}
COSTS: dict[str, Any] = {
    "pretrain-phase1": {
        "train_seconds": 8130.0,
        "hardware": "8 threads of AMD EPYC 7763 64-Core Processor, evil.sh",
        "energy_source": "estimated with 12 W for a busy core",
        "energy_wh": 216.84,
        "resumed_from_step": 1200,
    },
    "squad-finetune": {"train_seconds": 10.32, "resumed_from_step": 0},  # of an earlier version
}
TIMES = {"threads": 1, "length": 32, "calls": 7, "p50_ms": 1.5, "p95_ms": None, "p99_ms": None}
SPEED = {
    "hardware": "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz, 2 threads",
    "batch": 32,
    "speed": [
        {"name": name, **TIMES, "sequences_per_second": None} for name in ("model.safetensors", "onnx/model.onnx")
    ],
}
FILE = {"name": "onnx/model.onnx", "megabytes": 1.0, "metric": "F1", "score": 90.0, "low": 89.0, "high": 91.0}
FILE |= {"difference": None, "accepted": True, "failed": []}
WITHOUT = {"exact_match": 80.5, "exact_match_low": 79.0, "exact_match_high": 82.0}
WITHOUT |= {"f1": 85.25, "f1_low": 84.0, "f1_high": 86.0}


def facts(**changed: Any) -> CardFacts:
    known: dict[str, Any] = {
        "entry": task_with("squad"),
        "name": "user/demo",
        "title": "demo",
        "license": "apache-2.0",
        "language": "en",
        "parameters": parameter_values(params_with()),
        "metrics": METRICS,
        "gate": {"accepted": True, "reasons": [], "checks": CHECKS},
        "config": CONFIG,
        "provenance": ORIGIN,
    }
    return CardFacts(**{**known, **changed})


def near_duplicates(*counts: int, **scores: float) -> dict[str, Any]:
    names = ("training examples", "pre-training text", "either of them")
    parts = [{"in": name, "examples": count, "of": 1000, **scores} for name, count in zip(names, counts, strict=False)]
    near = {"near_duplicates": counts[-1], "near_duplicates_from": 0.8, "without_near_duplicates": parts}
    return {"metrics": {**METRICS, **near}}


def model_card(**changed: Any) -> str:
    return str(KINDS["squad"].card(facts(**changed)))


def full_card(**changed: Any) -> str:
    """A card with every section."""
    base = {"source": "hub", "repository": "google/bert-tiny", "commit": "c" * 40}
    origin = {**ORIGIN, "base_model": base, "training": TRAININGS}
    more = {"provenance": origin, "files": [FILE], "measured": COSTS, "speed": SPEED}
    return model_card(**{**more, **near_duplicates(30, 12, 40, **WITHOUT), **changed})
