"""Which launcher started this process: torchrun, PopRun, or none."""

from __future__ import annotations

import importlib
from typing import Mapping

from ipu_model.distributed.poprun import Importer, under_poprun
from ipu_model.distributed.ranks import Instances
from ipu_model.distributed.torchrun import under_torchrun


def current(environ: Mapping[str, str], importer: Importer = importlib.import_module) -> Instances:
    """This process's place among those that were started with it. Call it once: under PopRun they talk.

    Raises:
        ConfigError: a launcher started this process, but what it needs is missing.
    """
    return under_torchrun(environ) or under_poprun(environ, importer) or Instances()
