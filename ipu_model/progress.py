"""What a job says while it runs: one JSON object per line, read by `tasks/jobs/device_job.py`.

| event     | fields                                                                                     |
|-----------|--------------------------------------------------------------------------------------------|
| message   | text                                                                                       |
| plan      | the resolved plan (plan.py)                                                                |
| step      | step, steps, loss and its parts, learning_rate, real_tokens_per_second, eta_seconds,       |
|           | memory_mb (of the process, now), device_memory_mb (peak so far; of GPUs)                   |
| evaluated | after, updates, best_after (updates), and figures of held-out rows (evaluation.py)        |
| predicted | rows, of, eta_seconds                                                                      |
| measured  | what `--measure` found (train/measuring.py)                                                |
| saved     | path                                                                                       |
| paused    | text: stopped before its end on purpose; why, and after which update                       |
| error     | type, text                                                                                 |
"""

from __future__ import annotations

import json
from typing import Any, Callable, TextIO

Emit = Callable[..., None]
"""emit("message", text="...")"""


class Progress:
    """Writes events to a stream. A reader that went away does not stop the job."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def __call__(self, event: str, **fields: Any) -> None:
        if self._gone:
            return
        try:
            self._stream.write(json.dumps({"event": event, **fields}) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # The parent died. The kernel sends SIGTERM for that (process.py), and the checkpoint which
            # it asks for matters more than the line.
            self._gone = True
