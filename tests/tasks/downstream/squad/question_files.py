"""Files of questions, the parameters that name them, and words for a tokenizer of them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

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
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": given, **extra}


def squad(*qas: dict[str, Any], context: str = CONTEXT, **extra: Any) -> dict[str, Any]:
    article = {"title": "Animals", "paragraphs": [{"context": context, "qas": list(qas)}], **extra}
    return {"version": "1.1", "data": [article]}


def write(path: Path, values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(values if isinstance(values, bytes) else json.dumps(values).encode())
    return path


VOCABULARY = [
    *"abcdefghijklmnopqrstuvwxyz0123456789.,?!'-",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
    *["the", "town", "was", "founded", "by", "in", "river", "mill", "##er", "##ing"],
    *["who", "when", "of", "and", "market"],
]


def windows(context_length: int, window: int, doc_stride: int) -> list[tuple[int, int]]:
    """Spans of context tokens that share `doc_stride`: windows(10, window=6, doc_stride=2) == [(0, 6), (4, 10)]."""
    starts = range(0, max(1, context_length - doc_stride), window - doc_stride)
    return [(start, min(start + window, context_length)) for start in starts]


def transformers_4() -> tuple[str | None, str]:
    """An interpreter whose transformers still has the question-answering pipeline, or why there is none."""
    for python in (os.environ.get("PODIUM_DEVICE_PYTHON"), str(ROOT / ".venv-poplar" / "bin" / "python")):
        probe = "from importlib.metadata import version; import sys; sys.exit(version('transformers')[:2] != '4.')"
        has_python = python is not None and Path(python).is_file()
        if has_python and subprocess.run([python, "-c", probe], capture_output=True, timeout=60).returncode == 0:
            return python, ""
    return None, "no transformers 4: set PODIUM_DEVICE_PYTHON to a Python that has it, or run make test-device-env"
