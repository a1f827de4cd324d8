"""How many CPU threads torch uses: a fact of the host, never of the job."""

from __future__ import annotations

from typing import Optional

import torch

from ipu_model.errors import ConfigError


def set_threads(asked: Optional[str]) -> None:
    """Apply PODIUM_THREADS; None leaves torch's choice.

    Raises:
        ConfigError: not a whole number above 0.
    """
    if not asked:
        return
    if not asked.isdigit() or int(asked) < 1:
        raise ConfigError(f"PODIUM_THREADS={asked!r} must be a whole number of threads, at least 1")
    torch.set_num_threads(int(asked))
