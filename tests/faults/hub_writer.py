"""One of several publishers: waits for a file to appear, publishes, prints what came of it as JSON.

python -m tests.faults.hub_writer TEXT direct|review FILE
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import tasks.release.hub.calls  # noqa: F401 (the imports are done when the start is given)
from tasks.release.hub.calls import Patience
from tasks.release.hub.transaction import release_on_hub
from tasks.stage.errors import PublishError
from tests.tasks.release.hub_publishing import NAME, small_release


def main(text: str, how: str, start: Path) -> None:
    release = small_release(text)
    print("ready", flush=True)
    until = time.monotonic() + 60
    while not start.exists():
        assert time.monotonic() < until, "no start was given"
        time.sleep(0.001)
    try:
        patience = Patience(first_wait_s=0.05)
        done = release_on_hub(release, NAME, private=True, review=how == "review", patience=patience)
        print(json.dumps(dataclasses.asdict(done)))
    except PublishError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
