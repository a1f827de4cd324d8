"""What a probe found on this host, kept for the next job: one small JSON file for each kind of work."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import torch

from ipu_model.files import find_object, write_json
from ipu_model.runtimes.host import cpu_flags, cpu_name
from ipu_model.runtimes.precision_probe import Rates, Work

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE")
"""Variables of the environment that choose other kernels."""
MODEL = ("hidden_size", "intermediate_size", "num_heads", "num_layers")


def cache_folder(environ: Mapping[str, str]) -> Optional[Path]:
    """$XDG_CACHE_HOME/podium/precision, else ~/.cache/podium/precision; None where there is no home."""
    root = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # the XDG specification has other values ignored
        root = os.path.expanduser("~/.cache")
    return Path(root, "podium", "precision") if os.path.isabs(root) else None


def key_of(work: Work, environ: Mapping[str, str]) -> Dict[str, Any]:
    """What the figures hang on: CPU, torch, threads, and sizes of the work, rounded up to powers of two."""
    config = work.config
    sizes = {"tokens": work.tokens, "sequences": len(work.lengths), "masked": work.masked}
    return {
        "cpu": cpu_name(),
        "flags": sorted(flag for flag in cpu_flags() if flag.startswith(("avx", "amx"))),
        "limits": {name: environ[name] for name in LIMITS if name in environ},
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "training": work.training,
        **{name: getattr(config, name) for name in MODEL},
        "dropout": work.training and [config.hidden_dropout > 0, config.attention_dropout > 0],
        "vocab_size": config.vocab_size if work.masked else 0,
        **{name: 1 << (size - 1).bit_length() if size else 0 for name, size in sizes.items()},
    }


def file_of(folder: Path, key: Mapping[str, Any]) -> Path:
    """Where the figures of a key are kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:16]}.json"


def find(path: Path, key: Mapping[str, Any]) -> Optional[Rates]:
    """The figures kept for a key; None where there are none that can be read."""
    kept = find_object(path)
    if kept is None or kept.get("key") != key:
        return None
    fp32, bf16, unit = kept.get("fp32"), kept.get("bf16"), kept.get("unit")
    rates = [rate for rate in (fp32, bf16) if isinstance(rate, float) and math.isfinite(rate) and rate > 0]
    if len(rates) < 1 + (bf16 is not None) or not isinstance(unit, str):
        return None
    return Rates(rates[0], rates[1] if bf16 is not None else None, unit)


def keep(path: Path, key: Mapping[str, Any], rates: Rates) -> None:
    """Write the figures of a key, whole or not at all; of several writers at once the last one stays.

    Raises:
        OSError: it cannot be written.
    """
    write_json(path, {"key": key, "fp32": rates.fp32, "bf16": rates.bf16, "unit": rates.unit})
