"""Facts for a card, and the card of them."""

import dataclasses
from typing import Any

from tasks.downstream.card import CardFacts
from tasks.downstream.kind import KINDS
from tasks.params.entries import find_entry
from tasks.params.schema import parameter_values
from tests.tasks.downstream.entries import task_with
from tests.tasks.trained_checkout import METRICS, params_with

CONFIG = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 2000}
CHECKS = [{"name": "f1", "ok": True, "found": 94.5678, "required": 85.0}]
ORIGIN: dict[str, Any] = {
    "git": {"revision": "f" * 40, "dirty": True, "changed": ["tasks/gate.py"]},
    "stages_sha256": "a" * 64,
    "parameters_sha256": "b" * 64,
    "data": {
        "verdicts": {"corpus": {"valid": True}, "squad": {"valid": True}},
        "rows": {"phase1": {"sequences": 123456, "real_tokens": 7890123}},
    },
    "base_model": None,
    "training": {
        "pretrain-phase1": {"steps": 600, "final_loss": 2.34567, "runtime": "cpu", "precision": "fp32"},
        "pretrain-phase2": {"steps": 200},
    },
}


def facts(**changed: Any) -> CardFacts:
    known = CardFacts(
        entry=find_entry(params_with(), "squad"),
        name="user/demo",
        title="demo",
        license="apache-2.0",
        language="en",
        parameters=parameter_values(params_with()),
        metrics=METRICS,
        gate={"accepted": True, "reasons": [], "checks": CHECKS},
        config=CONFIG,
        provenance=ORIGIN,
    )
    return dataclasses.replace(known, **changed)


def model_card(known: CardFacts) -> str:
    return str(KINDS["squad"].card(dataclasses.replace(known, entry=task_with("squad"))))
