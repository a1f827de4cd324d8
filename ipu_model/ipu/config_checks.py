"""Rules for the values of an ipu_config.json, and contradictions between keys. Pure functions over plain values.

A problem is one sentence: the value, the requirement, and the setting to change. Problems are collected, so that one
message lists all of them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Collection, Iterable, List, Mapping, Optional, Tuple

from ipu_model.errors import ConfigError

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


def _at_least(floor: int) -> Rule:
    return f"a whole number of at least {floor}", lambda value: _is_int(value) and value >= floor


def _whole_numbers(floor: int, meaning: str) -> Rule:
    required = f"a list of whole numbers of at least {floor}, {meaning}"
    return required, lambda value: _is_list(value, lambda each: _is_int(each) and each >= floor)


COUNT = _at_least(1)
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
LAYERS = _whole_numbers(-1, "layers on each IPU (-1 = an even share of the rest)")
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


def format_value(value: Any) -> str:
    """Format a value as JSON, as it is in the file."""
    return json.dumps(value, default=repr, ensure_ascii=False)


def find_value_problem(name: str, value: Any, rule: Rule, nullable: bool) -> Optional[str]:
    """Return the problem with the value of a known key, or None."""
    required, holds = rule
    if holds(value) or (value is None and nullable):
        return None
    return f"{name}={format_value(value)} must be {required}" + (", or null" if nullable else "")


def resolve_pipeline(values: Mapping[str, Any], mode: str) -> Tuple[List[int], int]:
    """Return the layers on each IPU and the IPUs per replica of one mode, with Optimum's rules for missing keys.

    Args:
        values: every key of the config.
        mode: "" for training, "inference_" for inference.
    """
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
