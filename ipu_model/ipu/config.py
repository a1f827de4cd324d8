"""Settings in an ipu_config.json: placement of a model on IPUs, micro-batches and memory.

Keys, types and defaults are those of Optimum Graphcore 0.7 (IPUConfig): each program can read the other's files. The
reader is strict and reports all problems together. It translates keys of older releases first (migration.py).
Differences from Optimum, each of which only removes a surprise:

- `gradient_accumulation_steps` may be omitted: it is then derived from the global batch of the job.
- `seed` 0 is a seed (Optimum ignores it). Without a seed, the seed of the job is used.
- The serialization factors of inference default to those of training (Optimum: 1). They change memory, not results,
  and one model has one table. Saved files contain them, so that Optimum reads the same values.
- With LAMB the word table is trained in one piece, regardless of embedding_serialization_factor (device_model.py).
- `device_mapping` and `pipeline_stages` (from Graphcore's TensorFlow 2 example) place every block explicitly.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from ipu_model.errors import ConfigError
from ipu_model.ipu import config_checks as checks
from ipu_model.ipu.migration import describe_unknown_key, ignore, migrate

MATMUL_PROPORTION = 0.2
"""Default share of tile memory for the temporaries of a matmul; Optimum's default since 0.6."""


@dataclass(frozen=True)
class ModeConfig:
    """Settings of one mode, training or inference, all resolved except the number of layers."""

    replication_factor: int
    device_iterations: int
    layers_per_ipu: List[int]
    """Encoder layers on each IPU, one entry per IPU; -1 = an even share of the remaining layers."""
    ipus_per_replica: int
    matmul_proportion: List[float]
    """Share of tile memory for matmul temporaries, one entry per IPU."""
    embedding_serialization_factor: int
    """Parameters the word table is cut into, or parts of the decoder tied to it; 1 = one piece."""
    projection_serialization_factor: int
    """Parts the vocabulary projection is cut into; 1 = one piece."""


def _key(rule: checks.Rule, default: Any = None) -> Any:
    """Declare a key of ipu_config.json with the rule for its values; null is allowed where it is the default."""
    return field(default_factory=lambda: copy.deepcopy(default), metadata={"rule": rule, "nullable": default is None})


@dataclass(frozen=True)
class IpuConfig:
    """Contents of one ipu_config.json. None means derived, as described at each key.

    Raises:
        ConfigError: wrong types, values out of range, or contradictory settings; one message lists all of them.
    """

    replication_factor: int = _key(checks.COUNT, 1)
    """Data-parallel copies of the pipeline, in this process."""
    inference_replication_factor: int = _key(checks.COUNT, 1)
    gradient_accumulation_steps: Optional[int] = _key(checks.COUNT)
    """Micro-batches per update and replica; None = from the global batch."""
    layers_per_ipu: List[int] = _key(checks.LAYERS, [-1])
    """Encoder layers on each IPU; -1 = an even share of the rest, [-1] = spread evenly over ipus_per_replica."""
    inference_layers_per_ipu: Optional[List[int]] = _key(checks.LAYERS)
    ipus_per_replica: Optional[int] = _key(checks.IPUS)
    """IPUs of one replica; None = the length of layers_per_ipu."""
    inference_ipus_per_replica: Optional[int] = _key(checks.IPUS)
    optimizer_state_offchip: bool = _key(checks.SWITCH, False)
    """Keep the optimizer's moments in streaming memory: saves memory on chip, costs traffic at every update."""
    replicated_tensor_sharding: bool = _key(checks.SWITCH, False)
    """Each replica keeps only its share of the optimizer's moments."""
    matmul_proportion: Union[float, List[float]] = _key(checks.PROPORTION, MATMUL_PROPORTION)
    inference_matmul_proportion: Union[None, float, List[float]] = _key(checks.PROPORTION)
    enable_half_partials: bool = _key(checks.SWITCH, True)
    """Partial sums of matmuls in fp16: less memory, more speed, less precision. Only where the job is in fp16."""
    embedding_serialization_factor: Optional[int] = _key(checks.COUNT)
    inference_embedding_serialization_factor: Optional[int] = _key(checks.COUNT)
    serialized_embedding_splits_per_ipu: Optional[List[int]] = _key(checks.SPLITS)
    inference_serialized_embedding_splits_per_ipu: Optional[List[int]] = _key(checks.SPLITS)
    projection_serialization_factor: Optional[int] = _key(checks.COUNT)
    inference_projection_serialization_factor: Optional[int] = _key(checks.COUNT)
    serialized_projection_splits_per_ipu: Optional[List[int]] = _key(checks.SPLITS)
    inference_serialized_projection_splits_per_ipu: Optional[List[int]] = _key(checks.SPLITS)
    recompute_checkpoint_every_layer: bool = _key(checks.SWITCH, False)
    """Keep one activation per layer and recompute the rest, instead of keeping one per pipeline stage."""
    device_iterations: int = _key(checks.COUNT, 1)
    """Updates per host call."""
    inference_device_iterations: int = _key(checks.COUNT, 1)
    output_mode: str = _key(checks.OUTPUT, "sum")
    """Losses that a training call returns: all, sum, final, or default (= final). Inference returns all. Optimum's
    default is final, the loss of the last micro-batch alone; sum costs no more and is the loss of the whole update."""
    seed: Optional[int] = _key(checks.SEED)
    """Seed of the random numbers on the device; None = the seed of the job."""
    auto_loss_scaling: bool = _key(checks.SWITCH, False)
    executable_cache_dir: str = _key(checks.TEXT, "")
    """Folder of compiled programs; "" or "disabled" = none."""
    explicit_ir_inference: bool = _key(checks.SWITCH, False)
    device_mapping: Optional[List[int]] = _key(checks.MAPPING)
    """IPU of every pipeline stage; with pipeline_stages the explicit form of layers_per_ipu."""
    pipeline_stages: Optional[List[List[str]]] = _key(checks.STAGES)
    """Names of the blocks in every pipeline stage: emb, hid, enc_out, pool, heads, qa_head, glue_head."""

    def __post_init__(self) -> None:
        values = self._values()
        checks.raise_problems("ipu_config", _problems(values))
        for name in ("matmul_proportion", "inference_matmul_proportion"):
            object.__setattr__(self, name, _as_float(values[name]))

    @property
    def training(self) -> ModeConfig:
        """Settings of training."""
        return self._mode("")

    @property
    def inference(self) -> ModeConfig:
        """Settings of inference; they default to those of training, as in Optimum."""
        return self._mode("inference_")

    def to_dict(self) -> Dict[str, Any]:
        """Return the keys of ipu_config.json without derived values, which could contradict a key that you override."""
        values = asdict(self)
        for what in ("embedding", "projection"):
            twin = f"inference_{what}_serialization_factor"
            factor = getattr(self.inference, f"{what}_serialization_factor")
            if factor != 1 and values[f"inference_serialized_{what}_splits_per_ipu"] is None:
                values[twin] = factor  # Optimum's default is 1
        return {name: value for name, value in values.items() if value is not None}

    def _values(self) -> Dict[str, Any]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def _mode(self, prefix: str) -> ModeConfig:
        layers, ipus = checks.resolve_pipeline(self._values(), prefix)
        proportion = getattr(self, f"{prefix}matmul_proportion")
        if proportion is None:
            # Optimum's rule: a list for another number of IPUs does not apply, so the default is used.
            usable = not isinstance(self.matmul_proportion, list) or len(self.matmul_proportion) == ipus
            proportion = self.matmul_proportion if usable else MATMUL_PROPORTION
        return ModeConfig(
            replication_factor=getattr(self, f"{prefix}replication_factor"),
            device_iterations=getattr(self, f"{prefix}device_iterations"),
            layers_per_ipu=list(layers),
            ipus_per_replica=ipus,
            matmul_proportion=list(proportion) if isinstance(proportion, list) else [proportion] * ipus,
            embedding_serialization_factor=self._factor(prefix, "embedding"),
            projection_serialization_factor=self._factor(prefix, "projection"),
        )

    def _factor(self, prefix: str, what: str) -> int:
        for mode in (prefix, ""):
            factor = getattr(self, f"{mode}{what}_serialization_factor")
            splits = getattr(self, f"{mode}serialized_{what}_splits_per_ipu")
            if factor is not None or splits is not None:
                return int(sum(splits) if factor is None else factor)
        return 1


def read_ipu_config(
    values: Mapping[str, Any],
    where: str = "ipu_config",
    say: Callable[[str], None] = ignore,
) -> IpuConfig:
    """Read the keys of an ipu_config.json, of the current release of Optimum Graphcore or an older one.

    Args:
        values: the parsed JSON object.
        where: name of the source, for messages.
        say: receives one line for every key that was translated or dropped.

    Raises:
        ConfigError: the value is not an object; or keys are unknown (with the nearest name), have wrong types, are out
            of range or contradict each other. One message lists all problems.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a JSON object, found {type(values).__name__}")
    current, problems = migrate(values, say)
    known = IpuConfig()._values()
    problems += [describe_unknown_key(name, list(known)) for name in current if name not in known]
    stated = {name: value for name, value in current.items() if name in known}
    checks.raise_problems(where, problems + _problems({**known, **stated}))
    return IpuConfig(**copy.deepcopy(stated))


def _problems(values: Mapping[str, Any]) -> List[str]:
    specs = {spec.name: spec.metadata for spec in fields(IpuConfig)}
    wrong = {name: checks.find_value_problem(name, value, **specs[name]) for name, value in values.items()}
    invalid = {name: problem for name, problem in wrong.items() if problem}
    return [*invalid.values(), *checks.find_conflicts(values, invalid)]


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [float(each) for each in value]
    return None if value is None else float(value)
