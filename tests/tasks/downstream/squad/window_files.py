"""features.parquet and logits.arrow as tests want them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Window:
    """One window: [CLS], question tokens, [SEP], context tokens, [SEP]."""

    example: int
    offsets: Sequence[tuple[int, int]]
    """Characters of each context token."""
    start: Sequence[float]
    """Logits of the context tokens."""
    end: Sequence[float]
    question_tokens: int = 2
    outside: float = -3.0
    """Logit of every token that is not of the context."""

    def padded(self, logits: Sequence[float]) -> list[float]:
        return [self.outside] * (self.question_tokens + 2) + list(logits) + [self.outside]


def words(text: str) -> list[tuple[int, int]]:
    """Characters of the words of `text`, parted by single spaces."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def write_logits(
    path: Path, starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]], ids: Sequence[int] | None = None
) -> Path:
    columns = {
        "feature_id": pa.array(range(len(starts)) if ids is None else ids, pa.int32()),
        "start_logits": pa.array(starts, pa.list_(pa.float32())),
        "end_logits": pa.array(ends, pa.list_(pa.float32())),
    }
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def write_windows(folder: Path, windows: Sequence[Window], ids: Sequence[str]) -> tuple[Path, Path]:
    """Features and logits of these windows."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "feature_id": pa.array(range(len(windows)), pa.int32()),
        "example_id": [ids[w.example] for w in windows],
        "example_index": pa.array([w.example for w in windows], pa.int32()),
        "n_tokens": pa.array([len(w.padded(w.start)) for w in windows], pa.int32()),
        "context_start": pa.array([w.question_tokens + 2 for w in windows], pa.int32()),
        "offsets": pa.array([[c for pair in w.offsets for c in pair] for w in windows], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), folder / "features.parquet")
    starts, ends = [w.padded(w.start) for w in windows], [w.padded(w.end) for w in windows]
    return folder / "features.parquet", write_logits(folder / "logits.arrow", starts, ends)
