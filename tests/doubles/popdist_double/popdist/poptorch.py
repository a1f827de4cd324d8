"""popdist.poptorch: Options that PopRun has replicated already."""

from __future__ import annotations

import importlib
from typing import Any

import popdist

_base: Any = importlib.import_module("poptorch")


class _Fixed:
    """Stands for Options.Distributed, which PopDist has filled: PopTorch reads there which process this is."""

    processId: int
    numProcesses: int

    def __init__(self) -> None:
        self.processId, self.numProcesses = popdist.getInstanceIndex(), popdist.getNumInstances()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Distributed.{name} cannot be called: PopDist has set it")


class Options(_base.Options):  # type: ignore[misc,name-defined]
    """poptorch.Options, replicated for this instance; the setters that would undo it are refused."""

    def __init__(self, ipus_per_replica: int = 1) -> None:
        if "init" not in popdist.CALLS:
            raise RuntimeError("popdist.init() must be called first")
        if type(ipus_per_replica) is not int or not popdist.checkNumIpusPerReplica(ipus_per_replica):
            raise RuntimeError(f"ipus_per_replica={ipus_per_replica!r} is not what PopRun was given")
        super().__init__()
        super().replicationFactor(popdist.getNumLocalReplicas())

    @property
    def Distributed(self) -> _Fixed:
        return _Fixed()

    def replicationFactor(self, replication_factor: int) -> Any:
        raise RuntimeError("Cannot call replicationFactor: PopRun has set it")
