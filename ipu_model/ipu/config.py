"""Settings in an ipu_config.json: placement of a model on IPUs, micro-batches and memory.

Keys, types and defaults are those of Optimum Graphcore 0.7 (IPUConfig): each program can read the other's files. The
reader is strict and reports all problems together; a problem is one sentence with the value, the requirement, and the
setting to change. It translates keys of older releases first (migration.py).
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
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ipu_model.core.errors import ConfigError
from ipu_model.core.strict import nearest
from ipu_model.ipu.migration import format_value, ignore, migrate

MATMUL_PROPORTION = 0.2
"""Default share of tile memory for the temporaries of a matmul; Optimum's default since 0.6."""


OUTPUT_MODES = ("all", "sum", "final", "default")
BLOCKS = ("emb", "hid", "enc_out", "pool")
"""Names in pipeline_stages other than the head, as in Graphcore's TensorFlow 2 example, in order of execution."""
MODES = ("", "inference_")
"""Prefixes of the keys for training and for inference."""

Rule = Tuple[str, Callable[[Any], bool]]
"""Requirement on a value as text, and the function that checks it."""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_proportion(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and 0 < value <= 1  # NaN compares false


def _is_list(value: Any, entry: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(entry(each) for each in value)


def _is_block(value: Any) -> bool:
    """Accept any name that could be a head; placement.py checks that the head exists."""
    return isinstance(value, str) and (value in BLOCKS or re.fullmatch(r"([a-z]+_)*heads?", value) is not None)


COUNT: Rule = ("a whole number of at least 1", lambda value: _is_int(value) and value >= 1)
MOST_IPUS = 1024
"""Limit on the IPUs of one replica, above the largest system: it keeps lists with an entry per IPU small."""
IPUS: Rule = (
    f"a whole number of at least 1, at most {MOST_IPUS}",
    lambda value: _is_int(value) and 1 <= value <= MOST_IPUS,
)
MAPPING: Rule = (
    "a list of whole numbers of at least 0, the IPU of each pipeline stage",
    lambda value: _is_list(value, lambda each: _is_int(each) and 0 <= each < MOST_IPUS),
)
SWITCH: Rule = ("true or false", lambda value: isinstance(value, bool))
TEXT: Rule = ("a text", lambda value: isinstance(value, str))
PROPORTION: Rule = (
    "a number above 0 and at most 1, or a list of them, one per IPU",
    lambda value: _is_proportion(value) or _is_list(value, _is_proportion),
)
LAYERS: Rule = (
    "a list of whole numbers of at least -1, layers on each IPU (-1 = an even share of the rest)",
    lambda value: _is_list(value, lambda each: _is_int(each) and each >= -1),
)
SPLITS: Rule = (
    "a list of whole numbers of at least 0, parts on each IPU, with at least one part",
    lambda value: _is_list(value, lambda each: _is_int(each) and each >= 0) and sum(value) >= 1,
)
SEED: Rule = ("a whole number from 0 to 2**64 - 1", lambda value: _is_int(value) and 0 <= value < 2**64)
OUTPUT: Rule = (f"one of {', '.join(OUTPUT_MODES)}", lambda value: isinstance(value, str) and value in OUTPUT_MODES)
STAGES: Rule = (
    f"a list of stages, each a list of blocks: {', '.join(BLOCKS)}, or that of a head (heads, qa_head, glue_head ...)",
    lambda value: _is_list(value, lambda stage: _is_list(stage, _is_block)),
)


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


def _key(rule: Rule, default: Any = None) -> Any:
    """Declare a key of ipu_config.json with the rule for its values; null is allowed where it is the default."""
    return field(default_factory=lambda: copy.deepcopy(default), metadata={"rule": rule, "nullable": default is None})


@dataclass(frozen=True)
class IpuConfig:
    """Contents of one ipu_config.json. None means derived, as described at each key.

    Raises:
        ConfigError: wrong types, values out of range, or contradictory settings; one message lists all of them.
    """

    replication_factor: int = _key(COUNT, 1)
    """Data-parallel copies of the pipeline, in this process."""
    inference_replication_factor: int = _key(COUNT, 1)
    gradient_accumulation_steps: Optional[int] = _key(COUNT)
    """Micro-batches per update and replica; None = from the global batch."""
    layers_per_ipu: List[int] = _key(LAYERS, [-1])
    """Encoder layers on each IPU; -1 = an even share of the rest, [-1] = spread evenly over ipus_per_replica."""
    inference_layers_per_ipu: Optional[List[int]] = _key(LAYERS)
    ipus_per_replica: Optional[int] = _key(IPUS)
    """IPUs of one replica; None = the length of layers_per_ipu."""
    inference_ipus_per_replica: Optional[int] = _key(IPUS)
    optimizer_state_offchip: bool = _key(SWITCH, False)
    """Keep the optimizer's moments in streaming memory: saves memory on chip, costs traffic at every update."""
    replicated_tensor_sharding: bool = _key(SWITCH, False)
    """Each replica keeps only its share of the optimizer's moments."""
    matmul_proportion: Union[float, List[float]] = _key(PROPORTION, MATMUL_PROPORTION)
    inference_matmul_proportion: Union[None, float, List[float]] = _key(PROPORTION)
    enable_half_partials: bool = _key(SWITCH, True)
    """Partial sums of matmuls in fp16: less memory, more speed, less precision. Only where the job is in fp16."""
    embedding_serialization_factor: Optional[int] = _key(COUNT)
    inference_embedding_serialization_factor: Optional[int] = _key(COUNT)
    serialized_embedding_splits_per_ipu: Optional[List[int]] = _key(SPLITS)
    inference_serialized_embedding_splits_per_ipu: Optional[List[int]] = _key(SPLITS)
    projection_serialization_factor: Optional[int] = _key(COUNT)
    inference_projection_serialization_factor: Optional[int] = _key(COUNT)
    serialized_projection_splits_per_ipu: Optional[List[int]] = _key(SPLITS)
    inference_serialized_projection_splits_per_ipu: Optional[List[int]] = _key(SPLITS)
    recompute_checkpoint_every_layer: bool = _key(SWITCH, False)
    """Keep one activation per layer and recompute the rest, instead of keeping one per pipeline stage."""
    device_iterations: int = _key(COUNT, 1)
    """Updates per host call."""
    inference_device_iterations: int = _key(COUNT, 1)
    output_mode: str = _key(OUTPUT, "sum")
    """Losses that a training call returns: all, sum, final, or default (= final). Inference returns all. Optimum's
    default is final, the loss of the last micro-batch alone; sum costs no more and is the loss of the whole update."""
    seed: Optional[int] = _key(SEED)
    """Seed of the random numbers on the device; None = the seed of the job."""
    auto_loss_scaling: bool = _key(SWITCH, False)
    executable_cache_dir: str = _key(TEXT, "")
    """Folder of compiled programs; "" or "disabled" = none."""
    explicit_ir_inference: bool = _key(SWITCH, False)
    device_mapping: Optional[List[int]] = _key(MAPPING)
    """IPU of every pipeline stage; with pipeline_stages the explicit form of layers_per_ipu."""
    pipeline_stages: Optional[List[List[str]]] = _key(STAGES)
    """Names of the blocks in every pipeline stage: emb, hid, enc_out, pool, heads, qa_head, glue_head."""

    def __post_init__(self) -> None:
        values = self._values()
        raise_problems("ipu_config", _problems(values))
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
        layers, ipus = resolve_pipeline(self._values(), prefix)
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
    every = f"; valid keys: {', '.join(sorted(known))}"
    problems += [f"{key} is not known{nearest(str(key), list(known), every)}" for key in current if key not in known]
    settings = {name: value for name, value in current.items() if name in known}
    raise_problems(where, problems + _problems({**known, **settings}))
    return IpuConfig(**copy.deepcopy(settings))


def _problems(values: Mapping[str, Any]) -> List[str]:
    specs = {spec.name: spec.metadata for spec in fields(IpuConfig)}
    wrong = {name: find_value_problem(name, value, **specs[name]) for name, value in values.items()}
    invalid = {name: problem for name, problem in wrong.items() if problem}
    return [*invalid.values(), *find_conflicts(values, invalid)]


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [float(each) for each in value]
    return None if value is None else float(value)


def find_value_problem(name: str, value: Any, rule: Rule, nullable: bool) -> Optional[str]:
    """Return the problem with the value of a known key, or None."""
    required, holds = rule
    if holds(value) or (value is None and nullable):
        return None
    return f"{name}={format_value(value)} must be {required}" + (", or null" if nullable else "")


def resolve_pipeline(values: Mapping[str, Any], mode: str) -> Tuple[List[int], int]:
    """Return the layers on each IPU and the IPUs per replica of one of MODES, with Optimum's rules for missing keys."""
    if values["device_mapping"] is not None:
        ipus = 1 + max(values["device_mapping"])
        return [-1] * ipus, ipus
    layers = values["layers_per_ipu"]
    ipus = values["ipus_per_replica"] or len(layers)
    if mode:
        trained_on = ipus
        follows = ipus == len(layers)
        layers = values["inference_layers_per_ipu"] or layers
        ipus = len(layers) if follows or layers != [-1] else trained_on
        ipus = values["inference_ipus_per_replica"] or ipus
    return (layers if layers != [-1] else [-1] * ipus), ipus


def find_conflicts(values: Mapping[str, Any], bad: Collection[str]) -> List[str]:
    """Return every contradiction between keys, except those of keys in `bad`, which are reported already."""
    placement = {"layers_per_ipu", "ipus_per_replica", "device_mapping", "pipeline_stages"}
    if not placement.isdisjoint(bad):
        return []
    problems = _explicit_placement_problems(values)
    if problems:
        return problems
    for mode in MODES:
        if {f"{mode}layers_per_ipu", f"{mode}ipus_per_replica"}.isdisjoint(bad):
            problems += _pipeline_problems(values, mode, bad)
    return problems


def _explicit_placement_problems(values: Mapping[str, Any]) -> List[str]:
    mapping, stages = values["device_mapping"], values["pipeline_stages"]
    if mapping is None and stages is None:
        return []
    if mapping is None or stages is None:
        present, missing = (
            ("device_mapping", "pipeline_stages") if stages is None else ("pipeline_stages", "device_mapping")
        )
        return [f"{present} is set without {missing}: set both, or neither and use layers_per_ipu instead"]
    problems = []
    if len(mapping) != len(stages):
        problems.append(
            f"device_mapping={mapping} names the IPU of {len(mapping)} stages but pipeline_stages has {len(stages)}: "
            "list one IPU for each stage"
        )
    unused = sorted(set(range(max(mapping))) - set(mapping))
    if unused:
        problems.append(f"device_mapping={mapping} leaves IPU {unused[0]} without a stage: number the IPUs from 0")
    ipus = 1 + max(mapping)
    for name in ("layers_per_ipu", "inference_layers_per_ipu"):
        if values[name] not in (None, [-1]):
            problems.append(
                f"{name}={values[name]} and device_mapping={mapping} both place the layers: keep one of them "
                f"(leaving {name} out is enough)"
            )
    for name in ("ipus_per_replica", "inference_ipus_per_replica"):
        if values[name] not in (None, ipus):
            problems.append(f"{name}={values[name]} but device_mapping={mapping} uses {ipus} IPUs: leave {name} out")
    return problems


def _pipeline_problems(values: Mapping[str, Any], mode: str, bad: Collection[str]) -> List[str]:
    layers, ipus = resolve_pipeline(values, mode)
    problems = []
    name = f"{mode}matmul_proportion"
    shares = values[name] if name not in bad and isinstance(values[name], list) else [None] * ipus
    if len(layers) != ipus:
        problems.append(_stale_ipus(values, mode, layers, ipus))
    elif len(shares) != ipus:
        problems.append(
            f"{name}={shares} has {len(shares)} entries but a replica has {ipus} IPUs: use {ipus} entries, "
            "or one number for all IPUs"
        )
    for what in ("embedding", "projection"):
        names = (f"{mode}{what}_serialization_factor", f"{mode}serialized_{what}_splits_per_ipu")
        if set(names).isdisjoint(bad):
            problems += _split_problems(values, names, ipus)
    return problems


def _stale_ipus(values: Mapping[str, Any], mode: str, layers: List[int], ipus: int) -> str:
    """Explain why layers_per_ipu and ipus_per_replica disagree: usually one was overridden and the other was stored."""
    count = f"{mode}ipus_per_replica"
    listed = f"{mode}layers_per_ipu" if values[f"{mode}layers_per_ipu"] is not None else "layers_per_ipu"
    number = f"{count}={ipus}"
    if values[count] is None:
        number += f" (taken from ipus_per_replica={values['ipus_per_replica']})"
    shares = values[f"{mode}matmul_proportion"]
    misfit = isinstance(shares, list) and len(shares) != len(layers)
    also = f" (and use {len(layers)} entries in {mode}matmul_proportion)" if misfit else ""
    return (
        f"{listed}={layers} places the layers on {len(layers)} IPUs (one entry each) but {number}. "
        f"If {listed} is what you want, for instance because you changed it in a stored config, "
        f"set {count} to {len(layers)} or remove it{also}; if {ipus} IPUs are what you want, "
        f"use {ipus} entries in {listed}, or [-1] for an even share"
    )


def _split_problems(values: Mapping[str, Any], names: Tuple[str, str], ipus: int) -> List[str]:
    factor, splits = values[names[0]], values[names[1]]
    if splits is None:
        return []
    problems = []
    if factor is not None:
        problems.append(
            f"{names[0]}={factor} and {names[1]}={splits} both set the number of parts: keep {names[0]}, "
            "which keeps all parts on IPU 0"
        )
    if len(splits) != ipus:
        problems.append(f"{names[1]}={splits} has {len(splits)} entries but a replica has {ipus} IPUs: use {ipus}")
    if any(splits[1:]):
        problems.append(
            f"{names[1]}={splits} puts parts on other IPUs than 0, but BERT's word table is one tensor shared with "
            f"the decoder of masked words, and both are on IPU 0: use {names[0]}={sum(splits)}"
        )
    return problems


def raise_problems(where: str, problems: Iterable[str]) -> None:
    """Raise one ConfigError with all problems, if there are any."""
    listed = list(problems)
    if len(listed) == 1:
        raise ConfigError(f"{where}: {listed[0]}")
    if listed:
        raise ConfigError(f"{where} has {len(listed)} problems:\n" + "\n".join(f"- {problem}" for problem in listed))
