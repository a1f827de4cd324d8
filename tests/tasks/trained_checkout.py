"""A small checkout that looks as if every stage up to the gate had run; the model is random and tiny."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks import artifacts
from tasks.params import Params, check, read_yaml

PROJECT = Path(__file__).resolve().parents[2]
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "does", "the", "river", "rise", "?", "in", "northern",
    "hills", "and", "ends", "a", "lake", ".", "who", "found",
]  # fmt: skip


def make_checkout(root: Path, *, seed: int = 0, accepted: bool = True) -> Path:
    """Fill `root` with model, tokenizer, predictions, metrics, gate verdict, reports and parameters."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_bytes((PROJECT / "params.yaml").read_bytes())
    (root / "dvc.lock").write_text("schema: '2.0'\n", encoding="utf-8")
    _tokenizer(root / artifacts.TOKENIZER)
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
    """A one-layer BertForQuestionAnswering with random weights from `seed`."""
    import torch
    from transformers import BertConfig, BertForQuestionAnswering

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128,
    )  # fmt: skip
    folder = root / artifacts.SQUAD_MODEL
    BertForQuestionAnswering(config).eval().save_pretrained(folder)
    digest = artifacts.sha256_of(root / artifacts.TOKENIZER / "tokenizer.json")
    _json(folder / "podium.json", {"tokenizer_sha256": digest, "kind": "finetune", "steps": 500, "seed": 5})


def _tokenizer(folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / "tokenizer.json"))
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
               "mask_token": "[MASK]"}  # fmt: skip
    _json(folder / "special_tokens_map.json", special)
    _json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 128, **special},
    )


def params_with(**publish: Any) -> Params:
    """The project's params.yaml with other publish values."""
    values = read_yaml(PROJECT / "params.yaml")
    values["publish"].update(publish)
    return check(values)


def _json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
