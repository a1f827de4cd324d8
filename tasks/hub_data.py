"""Hub data sets through the `datasets` library: streamed, no remote code, errors that name the params key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tasks.errors import InputError


def open_dataset(
    section: str, name: str | None, config: str | None, split: str, revision: str | None
) -> Iterator[dict[str, Any]]:
    """Rows of one split of a Hub data set, or of a local folder of data files, one by one.

    Args:
        section: section of params.yaml that the messages name (`corpus` or `questions`).
        name: Hub name `user/name`, or a local folder.
        config: configuration of the data set, where it has several.
        split: `train`, `validation`, or a slice such as `train[:1%]` is not possible when streaming.
        revision: branch, tag or commit.

    Raises:
        InputError: no name given, no such data set, configuration or split, no network, or a data set that
            would need its own Python code to be run.
    """
    if not name:
        raise InputError(f"{section}.source is hub and {section}.dataset is not set: "
                         f"set {section}.dataset to a name such as user/name")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        yield from rows
    except (ValueError, RuntimeError, OSError) as error:
        # the library's own errors (not found, gated, bad configuration or split, no connection) are of these kinds
        raise InputError(
            f"{section}.dataset={name} (config {config}, split {split}, revision {revision}) cannot be read: "
            f"{type(error).__name__}: {error}. Check {section}.dataset, its configuration, split and revision, and the "
            "connection; data sets that need their own Python code are not run"
        ) from None
