"""Data-parallel training on IPUs in several processes, under Graphcore's PopRun.

PopRun starts the same command N times and passes each process its rank in POPDIST_* variables, which the SDK's package
`popdist` reads. On the devices, PopTorch and PopDist reduce the gradients. On the host, each process reads its share of
the rows, and Horovod, which the SDK's examples use with PopDist, exchanges mean metrics and generator states.
Names and order of the calls: PopDist's Python API reference, and nlp/bert/pytorch and
tutorials/feature_examples/pytorch/popdist of graphcore/examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from ipu_model.core.errors import LAUNCHER, ConfigError
from ipu_model.distributed.instances import Instances

if TYPE_CHECKING:
    from torch import Tensor

Importer = Callable[[str], Any]
POPRUN_VARIABLES = "POPDIST_"
"""PopRun forwards POPDIST_NUM_TOTAL_REPLICAS, POPDIST_NUM_LOCAL_REPLICAS and so on to every process."""


@dataclass(frozen=True)
class PopRunInstances(Instances):
    """Processes that PopRun started, each with its own replicas; without PopRun, one process with all replicas."""

    total_replicas: Optional[int] = None
    """Replicas of all instances, as passed to PopRun; None without PopRun, where the config decides."""
    local_replicas: Optional[int] = None
    """Replicas of this instance; None without PopRun, and in a plan."""
    popdist: Optional[Any] = None
    collectives: Optional[Any] = None
    """The module horovod.torch, if there are several instances."""
    ipus_per_replica: Optional[int] = None
    """As passed to PopRun, set only in a plan that knows PopRun's arguments; a process under PopRun asks popdist."""

    def replicas(self, replication_factor: int) -> int:
        """Return the replicas of this process: all of the config's, or this instance's share.

        Raises:
            ConfigError: PopRun and the config have different numbers of replicas.
        """
        if self.total_replicas not in (None, replication_factor):
            raise ConfigError(
                f"poprun --num-replicas {self.total_replicas} does not agree with replication_factor "
                f"{replication_factor} of the ipu_config: both are the total over all instances. Set them to the same "
                "number",
                LAUNCHER,
            )
        return replication_factor // self.count if self.local_replicas is None else self.local_replicas

    def require_ipus(self, ipus_per_replica: int) -> None:
        """Compare the IPUs of a replica with PopRun's, in a plan that knows PopRun's arguments.

        Raises:
            ConfigError: the numbers differ.
        """
        if self.ipus_per_replica not in (None, ipus_per_replica):
            raise _ipus_mismatch(self.ipus_per_replica, ipus_per_replica)

    def make_options(self, poptorch: Any, ipus_per_replica: int) -> Tuple[Any, bool]:
        """Return PopTorch options, and whether PopDist sets their replication (then do not call replicationFactor).

        Raises:
            ConfigError: PopRun and the config have different numbers of IPUs per replica.
        """
        if self.popdist is None:
            return poptorch.Options(), False
        if not self.popdist.checkNumIpusPerReplica(ipus_per_replica):
            raise _ipus_mismatch(self.popdist.getNumIpusPerReplica(), ipus_per_replica)
        return self.popdist.poptorch.Options(ipus_per_replica=ipus_per_replica), True

    def gather(self, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
        if self.collectives is None:
            return state
        gathered = {}
        for name in sorted(state):
            parts = self.collectives.allgather(state[name], name=f"podium.gather.{name}").chunk(self.count)
            gathered.update({name if i == 0 else f"{name}@{i}": x.clone() for i, x in enumerate(parts)})
        return gathered

    def _means(self, values: List[float], purpose: str) -> List[float]:
        if self.collectives is None:
            return values
        import torch

        # One tensor and one name: Horovod pairs the calls of the instances by name.
        mine = torch.tensor(values, dtype=torch.float64)
        means = self.collectives.allreduce(mine, name=f"podium.{purpose}", op=self.collectives.Average)
        return [float(mean) for mean in means]


def _ipus_mismatch(actual: Any, required: int) -> ConfigError:
    return ConfigError(
        f"poprun --ipus-per-replica {actual} does not agree with the ipu_config, which uses {required} IPUs per "
        "replica (len(layers_per_ipu)): set both to the same number",
        LAUNCHER,
    )


def detect_poprun(environ: Mapping[str, str], importer: Importer) -> Optional[PopRunInstances]:
    """Return this process's rank under PopRun; None without it. Call it once, because it communicates with the others.

    Raises:
        ConfigError: PopRun started this process, but its Python packages are missing.
    """
    started_by_poprun = any(name.startswith(POPRUN_VARIABLES) for name in environ)
    popdist = _import(importer, "popdist", required=started_by_poprun)
    if popdist is None or not popdist.isPopdistEnvSet():
        return None
    # This must be the first call of popdist: graphcore/examples PR 108 fixed a run without it.
    popdist.init()
    _import(importer, "popdist.poptorch", required=True)
    count = int(popdist.getNumInstances())
    collectives = None
    if count > 1:
        collectives = _import(importer, "horovod.torch", required=True)
        collectives.init()
    return PopRunInstances(
        index=int(popdist.getInstanceIndex()),
        count=count,
        total_replicas=int(popdist.getNumTotalReplicas()),
        local_replicas=int(popdist.getNumLocalReplicas()),
        popdist=popdist,
        collectives=collectives,
    )


def _import(importer: Importer, name: str, required: bool) -> Any:
    try:
        return importer(name)
    except ImportError as error:
        if not required:
            return None
        raise ConfigError(
            f"PopRun started this process, but {name} cannot be imported ({error}): each instance would train "
            "alone. Install the wheels of the Poplar SDK (popdist, horovod) into the device's Python, or start "
            "without poprun"
        ) from error
