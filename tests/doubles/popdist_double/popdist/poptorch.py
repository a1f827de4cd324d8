"""popdist.poptorch: Options that PopRun has replicated already."""

import importlib

import popdist


class Options(importlib.import_module("poptorch").Options):
    """poptorch.Options, replicated for this instance; the setter that would undo it is refused."""

    def __init__(self, ipus_per_replica=1):
        if not popdist.checkNumIpusPerReplica(ipus_per_replica):
            raise RuntimeError(f"ipus_per_replica={ipus_per_replica!r} is not what PopRun was given")
        super().__init__()
        super().replicationFactor(popdist.getNumLocalReplicas())

    def replicationFactor(self, replication_factor):
        raise RuntimeError("Cannot call replicationFactor: PopRun has set it")
