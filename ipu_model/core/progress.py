"""Progress events of a job: one JSON object per line, read by `tasks/jobs/device_job.py`.

| event     | fields                                                                                     |
|-----------|--------------------------------------------------------------------------------------------|
| message   | text                                                                                       |
| plan      | the resolved plan (plan.py)                                                                |
| step      | step, steps, loss and its parts, learning_rate, real_tokens_per_second, eta_seconds,       |
|           | memory_mb (current, of the process), device_memory_mb (peak so far, GPUs only)             |
| progress  | update, of, loss (mean of the open window), eta_seconds: between two steps, from the first on |
| evaluated | after, updates, best_after (updates), and metrics on held-out rows (evaluation.py)         |
| predicted | rows, of, eta_seconds                                                                      |
| measured  | results of `--measure` (train/measurement.py)                                                |
| saved     | path                                                                                       |
| paused    | text: why the job stopped early on purpose, and after which update                         |
| error     | type, text                                                                                 |
"""

from __future__ import annotations

import json
from typing import Any, Callable, TextIO

Emit = Callable[..., None]
"""emit("message", text="...")"""


class Progress:
    """Writer of events to a stream. If the reader closes the stream, the job continues."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False

    def __call__(self, event: str, **fields: Any) -> None:
        if self._closed:
            return
        try:
            self._stream.write(json.dumps({"event": event, **fields}) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # The parent died. The kernel then sends SIGTERM (process.py), and the checkpoint made for that
            # matters more than this line.
            self._closed = True
