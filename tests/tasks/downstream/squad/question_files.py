"""Files of questions, and the parameters that name them."""

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.squad.params import SquadDataParams
from tests.places import ROOT

CONTEXT = "Ants dig deep. Bees hum, and bees dance."


def params(**values: Any) -> SquadDataParams:
    paths = {"source": "files", "train_path": "nowhere", "dev_path": "nowhere"}
    return SquadDataParams(**{**paths, "seed": 2, "demo_train": 40, "demo_dev": 20, **values})


def qa(
    name: str = "q1", question: str = "What do bees do?", answers: Any = (("hum", 20),), **extra: Any
) -> dict[str, Any]:
    """A question on CONTEXT; "hum" stands at characters 20 to 22."""
    return {
        "id": name,
        "question": question,
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **extra,
    }


def squad(*qas: dict[str, Any], context: str = CONTEXT, **extra: Any) -> dict[str, Any]:
    article = {"title": "Animals", "paragraphs": [{"context": context, "qas": list(qas)}], **extra}
    return {"version": "1.1", "data": [article]}


def write(path: Path, values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(values if isinstance(values, bytes) else json.dumps(values).encode())
    return path


Rows = list[dict[str, Any]]


def as_struct(row: dict[str, Any]) -> dict[str, Any]:
    given = row["answers"]
    return {**row, "answers": {key: [answer[key] for answer in given] for key in ("text", "answer_start")}}


def as_json_text(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "answers": json.dumps(as_struct(row)["answers"])}


def as_flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {f"answer_{key.removeprefix('answer_')}": value for key, value in row["answers"][0].items()}
    return {**{key: value for key, value in row.items() if key != "answers"}, **flat}


def write_table(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


VOCABULARY = [
    *"abcdefghijklmnopqrstuvwxyz0123456789.,?!'-",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
    *["the", "town", "was", "founded", "by", "in", "river", "mill", "##er", "##ing"],
    *["who", "when", "of", "and", "market"],
]
SHORT = "The town of Łódź-Mill was founded by Émile O'Brien, a miller, in 1423; the market and the river came later."


def windows(context_length: int, window: int, doc_stride: int) -> list[tuple[int, int]]:
    """Spans of context tokens that share `doc_stride`: windows(10, window=6, doc_stride=2) == [(0, 6), (4, 10)]."""
    spans = [(0, min(window, context_length))]
    while spans[-1][1] < context_length:
        start = spans[-1][0] + window - doc_stride
        spans.append((start, min(start + window, context_length)))
    return spans


def transformers_4() -> tuple[str | None, str]:
    """An interpreter whose transformers still has the question-answering pipeline, or why there is none."""
    candidates = [os.environ.get("PODIUM_DEVICE_PYTHON"), str(ROOT / ".venv-poplar" / "bin" / "python")]
    for python in candidates:
        if not python or not Path(python).is_file():
            continue
        probe = "from importlib.metadata import version; import sys; sys.exit(version('transformers')[:2] != '4.')"
        if subprocess.run([python, "-c", probe], capture_output=True, timeout=60).returncode == 0:
            return python, ""
    return None, "no transformers 4: set PODIUM_DEVICE_PYTHON to a Python that has it, or run make test-device-env"
