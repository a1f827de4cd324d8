"""Which run made what a stage left, and what that took: one that skips a stage shows the figures of who ran it.

What there is of a stage is known by its entry in dvc.lock: command, inputs, parameters and outs. While that stays the
same, so does what was measured as it was made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.project.dvc_records import LOCK
from tasks.project.plan_file import stages_of

Made = dict[str, Any]
"""Facts of the run (began, host, commit, command), figures of the stage (at, seconds, cpu_seconds, peak_memory_mb), and
lock, the digest of its entry."""
FIGURES = ("seconds", "cpu_seconds", "peak_memory_mb")


def digests(root: Path) -> dict[str, str]:
    """Stage -> twelve hexadecimal digits of its entry in dvc.lock."""
    entries = stages_of(root / LOCK).items()
    texts = ((name, json.dumps(entry, sort_keys=True, default=str)) for name, entry in entries)
    return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in texts}


def made_by(stage: Mapping[str, Any], run: Mapping[str, Any], digest: str | None, before: Made | None) -> Made | None:
    """Who made what there is of a stage now; None where nobody knows.

    Args:
        stage: its record in this run.
        run: facts of this run.
        digest: of its entry in dvc.lock; None where it has none.
        before: what an earlier run knew of it.
    """
    if stage["status"] == "ran":
        own = {**run, "host": stage["host"] or run["host"], "at": stage["began"], "lock": digest}
        return {**own, **{name: stage[name] for name in FIGURES}}
    same = before is not None and before["lock"] == digest
    return before if same and stage["status"] in ("skipped", "restored") else None
