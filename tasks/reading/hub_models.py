"""Models of the Hub: what a question needs of them, as safetensors and JSON, never pickles or code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tasks.project.errors import InputError
from tasks.reading.hub_inputs import download_files


def download_model(repository: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Folder with the model of a Hub repository, in the Hub's own cache.

    Args:
        repository: `name` or `user/name`; the token, if it needs one, comes from the environment.
        files: names of those that are read.
        revision: branch, tag or commit; default the main branch.

    Raises:
        InputError: no such repository or revision, no access, or no connection and nothing in the cache.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    _, _, found = download_files(repository, revision, lambda names: [name for name in files if name in names], "")
    if not found:
        raise InputError(f"{repository} holds none of {', '.join(files)}: it is no model that can be used here")
    name, path = next(iter(found.items()))
    return path.parents[len(Path(name).parts) - 1]
