"""A strict double of the SDK's popdist: names of its Python API reference, variables as PopRun sets them.

`init` comes first; what it cannot know without PopRun it refuses.
"""

from __future__ import annotations

import os
from typing import List

CALLS: List[str] = []
_TOTAL, _LOCAL = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS"
_OFFSET, _IPUS = "POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_NUM_IPUS_PER_REPLICA"


def isPopdistEnvSet() -> bool:
    return _TOTAL in os.environ


def init() -> None:
    if "init" in CALLS:
        raise RuntimeError("popdist.init() was called twice")
    CALLS.append("init")


def getNumTotalReplicas() -> int:
    return _number(_TOTAL)


def getNumLocalReplicas() -> int:
    return _number(_LOCAL)


def getNumIpusPerReplica() -> int:
    return _number(_IPUS)


def checkNumIpusPerReplica(ipus_per_replica: int) -> bool:
    return _number(_IPUS) == ipus_per_replica


def getNumInstances() -> int:
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    return _number(_OFFSET) // getNumLocalReplicas()


def _number(name: str) -> int:
    if "init" not in CALLS:
        raise RuntimeError("popdist.init() must be called first")
    return int(os.environ[name])
