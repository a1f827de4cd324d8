"""What is recorded of an executable."""

from __future__ import annotations

from typing import Any, Dict, List

from torch import Tensor

from poptorch import session
from poptorch.enums import OutputMode
from poptorch.record import RECORD

_WEIGHTS = ("weight_updates", "copy_weights_to_host", "copy_weights_to_device")
COUNTERS = ("executions", *_WEIGHTS, "optimizer_state_reads", "optimizer_state_writes", "attach", "detach")


def describe(executable: Any, inputs: List[Tensor]) -> Dict[str, Any]:
    """Everything that is known once the model is compiled."""
    program, options, weights = executable.program, executable.options, executable.weights
    used = sorted(program.used) or [0]
    trained = [name for name, x in weights.items() if executable.training and x.requires_grad]
    return {
        "index": len(RECORD["executables"]),
        "training": executable.training,
        "hash": executable.hash,
        "option_calls": executable.calls,
        "popart_session_options": session.popart_options(options),
        "tensor_locations": session.tensor_locations(options),
        "device_iterations": executable.iterations,
        "gradient_accumulation": executable.accumulation,
        "replication_factor": executable.replicas,
        "output_mode": OutputMode(options["output_mode"]).name,
        "blocks": program.blocks,
        "ipus_used": used,
        "num_ipus": executable.num_ipus,
        "pipeline_stages": executable.stages,
        "recomputation_checkpoints": program.checkpoints,
        "set_available_memory": program.memory,
        "matmul_serialization": program.serialization,
        "attributes": program.attributes,
        "losses": [list(loss) for loss in executable.losses],
        "inputs": [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in inputs],
        "num_outputs": sum(isinstance(x, Tensor) for x in executable.output_leaves),
        "parameters": {name: [list(x.shape), str(x.dtype), x.requires_grad] for name, x in weights.items()},
        "trainable_parameters_not_in_optimizer": sorted(set(trained) - set(executable.groups)),
        "optimizer": _optimizer(executable),
        "optimizer_updates": [],
        **dict.fromkeys(COUNTERS, 0),
        "ops": dict(sorted(program.ops.items())),
    }


def _optimizer(executable: Any) -> Any:
    if executable.attributes is None:
        return None
    names: List[List[str]] = [[] for _ in executable.attributes.groups]
    for name, group in executable.groups.items():
        names[group].append(name)
    return {**executable.attributes.describe(), "parameter_groups": names}
