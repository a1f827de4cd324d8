"""ONNX files of a model folder: as transformers loads it, with eager attention, and quantized to int8."""

from __future__ import annotations

import contextlib
import inspect
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from ipu_model.core.files import new_file
from tasks.downstream.inference.onnx_answers import (
    EXPORTING,
    INPUTS,
    EncodedSequence,
    import_onnxruntime,
    name_file,
    open_session,
    run_session,
)
from tasks.models.model_folders import CONFIG, count_parameters, describe_encoder, read_values
from tasks.stage.artifacts import EXPORT_FILES
from tasks.stage.errors import InputError, require_packages, translate_device_errors
from tasks.stage.process import loading_packages

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OPSET = 18
"""Version of ONNX's operators in the files."""
AXES = {0: "batch", 1: "length"}
TRACED = (2, 16)
"""Batch and length of the example that torch traces; both are dynamic in the file."""
COMPARED = 32
"""Sequences on which the logits are compared with transformers."""
FAULTS = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    SafetensorError,
)
"""Errors that transformers raises for damaged weights, or for impossible values in config.json."""
COPIED = (
    "config.json",
    "podium.json",
    "provenance.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
"""Files next to the exported ones, with which the folder is a model for clients."""


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silence notes of the packages that users cannot act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def load_model(folder: Path) -> PreTrainedModel:
    """Return the model of a folder as transformers' AutoModelFor... loads it, in fp32 with eager attention; an encoder
    alone with its pooling.

    Only what Podium knows of its config.json reaches transformers, and no more memory is taken than its weights need.

    Raises:
        InputError: transformers has no such class, or the weights are damaged, incomplete or of other sizes.
    """
    require_packages("export", EXPORTING)
    values = read_values(folder)
    name = str((values.get("architectures") or [""])[0])
    with loading_packages(), _silenced(), translate_device_errors():
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        pooled = name.endswith("Model")
        kind = getattr(transformers, "AutoModel" if pooled else f"AutoModelFor{name.partition('For')[2]}", None)
        if kind is None:
            raise InputError(f"{folder / CONFIG} names {name!r:.80}, which transformers cannot load for a task")
        try:
            settings = transformers.AutoConfig.for_model(**describe_encoder(values))
            with torch.device("meta"):
                size = sum(x.numel() for x in kind.from_config(settings).parameters())
            if size > 2 * (present := count_parameters(folder)):
                raise InputError(f"{folder}: {CONFIG} describes {size:,} parameters, the weights have {present:,}")
            model, info = kind.from_pretrained(
                str(folder),
                config=settings,
                attn_implementation="eager",
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except FAULTS as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{folder}: transformers cannot load the weights ({reason})") from None
    if missing := sorted(key for key in info["missing_keys"] if not (pooled and key.startswith("pooler."))):
        raise InputError(f"{folder} lacks weights: {', '.join(missing[:5])}. Only a fine-tuned model can be exported")
    if pooled:
        from tasks.downstream.export.pooled_encoder import PooledEncoder

        model = PooledEncoder(model, folder)
    return model.eval()


def write_onnx(model: PreTrainedModel, target: Path) -> None:
    """Write a model in fp32, with dynamic batch and length. Equal models give equal bytes."""
    import torch

    accepted = inspect.signature(model.forward).parameters
    inputs = [name for name in INPUTS if name in accepted]
    if getattr(model.config, "type_vocab_size", 0) < 2:
        inputs = [name for name in inputs if name != "token_type_ids"]
    example = {name: torch.ones(TRACED, dtype=torch.long) for name in inputs}
    with torch.no_grad():
        whole, part = model(**example), model(**{name: x[:, 1:] for name, x in example.items()})
    outputs = {name: AXES if part[name].shape[1] < x.shape[1] else {0: AXES[0]} for name, x in whole.items()}
    if "token_type_ids" in example:
        example["token_type_ids"] = torch.zeros(TRACED, dtype=torch.long)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as partial, _silenced(), torch.no_grad():
        torch.onnx.export(
            model,
            (),
            str(partial),
            kwargs=example,
            input_names=inputs,
            output_names=list(outputs),
            dynamic_axes={**dict.fromkeys(inputs, AXES), **outputs},
            opset_version=OPSET,
            dynamo=False,  # the other exporter takes ten times as long, and writes paths of this machine into the file
        )


def quantize(source: Path, target: Path) -> None:
    """Write an ONNX file with the weights of its matrix products in 8 bits; activations are quantized at run time.

    Weights are unsigned: signed ones saturate on processors without VNNI, so that scores would depend on the host.
    """
    with new_file(target) as partial, _silenced():
        import_onnxruntime()
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(str(source), str(partial), weight_type=QuantType.QUInt8)


def write_formats(model: object, formats: Sequence[str], folder: Path) -> dict[str, Path]:
    """Write the files of these formats into a folder; return the file of each."""
    plain = folder / EXPORT_FILES["onnx"]
    write_onnx(model, plain)
    if "int8" in formats:
        quantize(plain, folder / EXPORT_FILES["int8"])
    if "onnx" not in formats:
        plain.unlink()
    return {name: folder / EXPORT_FILES[name] for name in formats}


def compare_with_transformers(model: PreTrainedModel, path: Path, sequences: Sequence[EncodedSequence]) -> float | None:
    """Return the largest difference of a logit of transformers and of the exported file on these sequences; None if
    one is not finite.

    Raises:
        InputError: the file is not an ONNX model with the inputs and outputs of this one.
    """
    import torch

    session, accepted = open_session(path), inspect.signature(model.forward).parameters
    largest = 0.0
    for sequence in sequences:
        ids, types = sequence.input_ids[None], sequence.token_type_ids[None]
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        if all(name.name != "token_type_ids" for name in session.get_inputs()):
            del values["token_type_ids"]
        with torch.no_grad():
            theirs = model(**{name: torch.from_numpy(x) for name, x in values.items() if name in accepted})
        with name_file(path):
            ours = run_session(session, ids, types)
        if [x.shape for x in ours] != [x.shape for x in theirs.values()]:
            raise InputError(f"{path} has other outputs than the model")
        for logits, other in zip(theirs.values(), ours, strict=True):
            apart = float(np.abs(logits.numpy() - other).max())
            if not np.isfinite(apart):
                return None
            largest = max(largest, apart)
    return largest


def copy_files(folder: Path, *sources: Path) -> None:
    """Copy configuration and tokenizer next to the exported files."""
    for source in sources:
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
