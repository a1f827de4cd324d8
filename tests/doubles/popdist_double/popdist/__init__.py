"""A strict double of the SDK's popdist: names of its Python API reference, variables as PopRun sets them.

`init` comes first; what it cannot know without PopRun it refuses.
"""

import os

CALLS = []


def isPopdistEnvSet():
    return "POPDIST_NUM_TOTAL_REPLICAS" in os.environ


def init():
    if "init" in CALLS:
        raise RuntimeError("popdist.init() was called twice")
    CALLS.append("init")


def getNumTotalReplicas():
    return _number("NUM_TOTAL_REPLICAS")


def getNumLocalReplicas():
    return _number("NUM_LOCAL_REPLICAS")


def getNumIpusPerReplica():
    return _number("NUM_IPUS_PER_REPLICA")


def checkNumIpusPerReplica(ipus_per_replica):
    return getNumIpusPerReplica() == ipus_per_replica


def getNumInstances():
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex():
    return _number("REPLICA_INDEX_OFFSET") // getNumLocalReplicas()


def _number(name):
    if "init" not in CALLS:
        raise RuntimeError("popdist.init() must be called first")
    return int(os.environ[f"POPDIST_{name}"])
