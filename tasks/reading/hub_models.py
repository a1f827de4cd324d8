"""Models of the Hub: what a question needs of them, as safetensors and JSON, never pickles or code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tasks.project.errors import InputError


def download_model(repository: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Folder with the model of a Hub repository, in the Hub's own cache.

    Args:
        repository: `name` or `user/name`; the token, if it needs one, comes from the environment.
        files: names of those that are read.
        revision: branch, tag or commit; default the main branch.

    Raises:
        InputError: no such repository or revision, no access, or no connection and nothing in the cache.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(files)))
    except (OSError, ValueError) as error:
        # The library's own errors (not found, gated, offline, malformed name) are of these two kinds.
        raise InputError(
            f"{repository} is no folder here, and as a Hub repository it cannot be read: "
            f"{type(error).__name__}: {error}. Check the name, the connection, and HF_TOKEN if it is private"
        ) from None
