"""Scores of labels, and the stages that decide by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.files import write_json
from tasks.downstream.gate.gate import gate
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.stage import artifacts
from tests.tasks.downstream.entries import part_of, values_with

NAME = "mine"


def entry_values(**sections: Any) -> dict[str, Any]:
    entry = {"kind": "classification", "multilabel": True, "data": {"train_path": "a.csv", "dev_path": "b.csv"}}
    return values_with({"squad": None, NAME: {**entry, **sections}}, pretrain={"enabled": False})


def part(name: str, **sections: Any) -> Any:
    return part_of(find_entry(validate_params(entry_values(**sections)), NAME), name)


def write_split(root: Path, split: str, labels: list[Any], schema: pa.Schema) -> None:
    """Examples whose texts are numbers."""
    names = [f"{split} text {number}" for number in range(len(labels))]
    columns = {"first": names, "second": [None] * len(names), "label": labels, "id": names}
    path = root / artifacts.examples_file(NAME, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: columns[name] for name in schema.names}, schema=schema), path)


def write_logits(root: Path, split: str, logits: np.ndarray) -> None:
    """Logits as stage predict leaves them, and the features that they belong to."""
    rows = part("entry").rows_folder(split, root)
    rows.mkdir(parents=True, exist_ok=True)
    numbers = pa.array(range(len(logits)), pa.int32())
    pq.write_table(pa.table({"feature_id": numbers, "example_index": numbers}), rows / artifacts.FEATURES)
    path = root / artifacts.logits_file(NAME, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(logits.astype(np.float32).tolist(), pa.list_(pa.float32()))
    table = pa.table({"feature_id": numbers, "logits": values})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def write_model(root: Path) -> None:
    (root / "models" / NAME).mkdir(parents=True)
    (root / "models" / NAME / "model.safetensors").write_bytes(b"weights")


CHOSEN = {"rows": {"held_out_fraction": 0.5}}


def decided(root: Path, **sections: Any) -> dict[str, Any]:
    """The gate's decision where all data are valid."""
    for name in ("corpus", NAME, f"{NAME}-rows"):
        write_json(root / artifacts.validation_report(name), {"data": name, "valid": True})
    write_json(root / f"metrics/{NAME}-finetune.json", {"final_loss": 0.5, "steps": 10})
    return gate(entry_values(**sections), NAME, root)
