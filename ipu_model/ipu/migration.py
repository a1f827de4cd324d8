"""Translation of older ipu_config.json files to current keys.

Every key that Optimum Graphcore wrote (releases 0.1 to 0.7) is either current, translated here, dropped here because it
has no effect any more, or rejected here with the reason. Each change is reported in one line.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Tuple

POD_TYPES = ("pod4", "pod8", "pod16", "pod32", "pod64", "pod128", "pod256")
"""Keys of values per machine size in files up to 0.6, next to "default"."""

RENAMED = {
    "random_seed": "seed",
    "training_layers_per_ipu": "layers_per_ipu",
    "training_ipus_per_replica": "ipus_per_replica",
    "training_matmul_proportion": "matmul_proportion",
    "training_replication_factor": "replication_factor",
    "pipeline_device_mapping": "device_mapping",
}
BOOKKEEPING = (
    "optimum_version",
    "transformers_version",
    "mode",
    "_mode",
    "_attribute_type_hints",
    "_name_or_path",
    "_commit_hash",
)
DROPPED = {
    "decompose_grad_sum": "PopART's gradient sums are no longer configurable",
    "profile_dir": "POPLAR_ENGINE_OPTIONS in the environment enables profiling",
    "use_popdist": "a run under poprun is recognised by its environment",
    "compile_only": "compile_only of the job decides",
    "sharded_execution_for_inference": "inference_execution of the job decides: auto is pipelined where "
    "inference_device_iterations fill the stages",
    "enable_half_first_order_momentum": "first_moment_precision of the job's optimizer decides",
}
"""Old keys without effect here, and the setting that decides now."""
FLIPPED_DEFAULTS = {"optimizer_state_offchip": True, "matmul_proportion": 0.6, "enable_half_partials": False}
"""Old defaults of missing keys whose default has changed."""
REFUSED_WHEN_SET = {
    "execute_encoder_on_cpu_for_generation": "it is for encoder-decoder models that generate text: set it to false",
    "synthetic_data": "a job trains only on its rows: set it to false",
    "parallelize_kwargs": "they are for encoder-decoder models, and nothing here reads them: set it to {}",
    "inference_parallelize_kwargs": "they are for encoder-decoder models, and nothing here reads them: set it to {}",
}


def format_value(value: Any) -> str:
    """Format a value as JSON, as it is in the file."""
    return json.dumps(value, default=repr, ensure_ascii=False)


def ignore(line: str) -> None:
    """Ignore a message: the default of `say`."""


def migrate(values: Mapping[str, Any], say: Callable[[str], None] = ignore) -> Tuple[Dict[str, Any], List[str]]:
    """Return the keys of any release under their current names, and the problems: values without an equivalent.

    Of a value such as {"pod4": 1, "pod16": 4, "default": 1}, the entry that the key "pod_type" names is taken, else
    "default". `say` receives one line per change.
    """
    problems: List[str] = []
    lines: List[str] = []
    current = _without_pod_types(dict(values), lines, problems)
    for name, reason in DROPPED.items():
        if name in current:
            lines.append(f"{name}={format_value(current.pop(name))}: dropped, {reason}")
    for old, new in RENAMED.items():
        if old in current:
            _rename(current, old, new, lines, problems)
    _translate_values(current, lines)
    if lines:  # the file is from an old release
        lines += [
            f"{name} is not set: the current default applies, older releases used {format_value(old)}"
            for name, old in FLIPPED_DEFAULTS.items()
            if name not in current
        ]
    _refuse(current, lines, problems)
    for name in BOOKKEEPING:
        if name in current:
            lines.append(
                f"{name}={format_value(current.pop(name))}: dropped, it describes the program that wrote the file"
            )
    for line in lines:
        say(line)
    return current, problems


def _without_pod_types(values: Dict[str, Any], lines: List[str], problems: List[str]) -> Dict[str, Any]:
    wanted = values.pop("pod_type", None)
    if wanted is not None and wanted not in POD_TYPES:
        problems.append(f"pod_type={format_value(wanted)} must be one of {', '.join(POD_TYPES)}")
        wanted = None
    chosen = wanted or "default"
    read = {}
    for name, value in values.items():
        if not isinstance(value, Mapping) or not value or not set(value) <= {*POD_TYPES, "default"}:
            read[name] = value
        elif chosen in value:
            read[name] = value[chosen]
            lines.append(f"{name}: {format_value(value[chosen])}, the value for {chosen}, is now the only value")
        else:
            knob = "add one, or choose another pod_type" if wanted else "choose one of them as pod_type"
            problems.append(f"{name} has no value for {chosen}, only for {', '.join(sorted(value))}: {knob}")
    return read


def _rename(current: Dict[str, Any], old: str, new: str, lines: List[str], problems: List[str]) -> None:
    value = current.pop(old)
    if current.get(new, value) != value:
        problems.append(
            f"{old}={format_value(value)} is the old name of {new}={format_value(current[new])}: keep {new}"
        )
        return
    lines.append(f"{old}: now named {new}")
    current[new] = value


def _refuse(current: Dict[str, Any], lines: List[str], problems: List[str]) -> None:
    for name, reason in REFUSED_WHEN_SET.items():
        if name not in current:
            continue
        value = current.pop(name)
        if value is False or value is None or value == {}:
            lines.append(f"{name}={format_value(value)}: dropped, it has no effect")
        else:
            problems.append(f"{name}={format_value(value)} is not supported: {reason}")


def _translate_values(current: Dict[str, Any], lines: List[str]) -> None:
    for factor in ("embedding_serialization_factor", "inference_embedding_serialization_factor"):
        if current.get(factor) == 0 and not isinstance(current[factor], (bool, float)):
            current[factor] = 1
            lines.append(f"{factor}: 0 is now written 1, one piece")
    layers = current.get("layers_per_ipu")
    if isinstance(layers, int) and not isinstance(layers, bool):
        current["layers_per_ipu"] = [layers]
        lines.append(f"layers_per_ipu: {layers} is now written [{layers}], one entry per IPU")
    if "executable_cache_dir" in current and current["executable_cache_dir"] is None:
        current["executable_cache_dir"] = ""
        lines.append('executable_cache_dir: null is now written "", no cache')
