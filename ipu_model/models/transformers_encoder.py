"""Encoders that Podium has no family file for (DeBERTa, ModernBERT, MPNet, ALBERT ...): transformers' own modules.

The only file that imports transformers. A model has transformers' parameter names, and the heads call it like their
own: it takes flat tokens, pads sequences of similar length to a rectangle, and returns flat logits. Classes come from
the installed library alone; code of a model repository never runs.

Legend: T tokens of all sequences one after the other, N sequences, C classes; n sequences of a group, L its longest.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.models.config import IGNORED_KEYS
from ipu_model.models.layers import Dense, Tokens, draw_mask_for, drop

CALL_TOKENS = {"cpu": 64, "cuda": 8192}
"""Tokens that take as long as a further call of the model, with the sums of its gradients."""
FAULTS = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that transformers raises for a config.json with impossible values."""


class FlatModel(nn.Module):
    """Mixin for a model of transformers with a head: flat tokens in, flat logits out."""

    config: Any
    pads = True
    """It computes padding, so sequences of similar length belong together (TorchRuntime)."""

    sparse_words = True
    """On a CPU, gradients of the word table are sparse until all groups are done: each dense one is a new table."""

    def set_recompute(self, active: bool) -> None:
        """Recompute layers in the backward pass, or store their activations."""
        if active and not self.supports_gradient_checkpointing:
            raise ConfigError(f"{self.config.model_type} does not support device.recompute: set it to false")
        if active:
            enable: Any = self.gradient_checkpointing_enable
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    recompute = property(fset=set_recompute)

    def draw_weights(self, seed: int) -> None:
        """Draw all weights from this seed, as transformers does for a new model."""
        draw: Any = self._init_weights
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.apply(draw)

    def forward(self, tokens: Tokens, cls_index: Optional[Tensor] = None) -> Tensor:
        """Return [N, C] for a head that reads whole sequences, else [T, C], or [T, 2] for start and end."""
        dense = next((module for module in self.modules() if isinstance(module, Dense)), None)
        low = dense is not None and dense.copy is not None
        device = tokens.input_ids.device.type
        model: Any = self
        model.get_input_embeddings().sparse = self.sparse_words and device == "cpu"
        with torch.autocast(device, torch.bfloat16, enabled=low):
            parts, start = [], 0
            for lengths in group_lengths(tokens.lengths, CALL_TOKENS.get(device, 0)):
                parts.append(self._run_group(tokens, start, lengths))
                start += int(lengths.sum())
        logits = torch.cat(parts)
        filler = 0 if cls_index is not None else len(tokens.input_ids) - start
        return nn.functional.pad(logits, (0, 0, 0, filler)) if filler else logits

    def _run_group(self, tokens: Tokens, start: int, lengths: np.ndarray) -> Tensor:
        """Run the sequences that begin at token `start`; return [n, C] or the logits of their tokens."""
        device, longest = tokens.input_ids.device, int(lengths.max())
        firsts = start + np.cumsum(lengths) - lengths
        columns = np.arange(longest)
        real = columns < lengths[:, None]
        index = torch.from_numpy(firsts[:, None] + np.minimum(columns, lengths[:, None] - 1)).to(device)
        mask = torch.from_numpy(real).to(device)
        inputs = {
            "input_ids": tokens.input_ids[index].masked_fill(~mask, self.config.pad_token_id or 0),
            "attention_mask": mask.long(),
        }
        if getattr(self.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = tokens.token_type_ids[index].masked_fill(~mask, 0)
        outputs = super().forward(**inputs)
        spans = "start_logits" in outputs
        logits = torch.stack([outputs[f"{end}_logits"] for end in ("start", "end")], -1) if spans else outputs["logits"]
        if logits.dim() == 2:
            return logits
        return logits.flatten(0, 1).index_select(0, torch.from_numpy(np.flatnonzero(real)).to(device))


class MaskedModel:
    """Mixin for a FlatModel with a masked language modelling head, which is called as masked_lm.BertForMaskedLM is.

    Its last matrix, the word table, passes the transformed hidden states on, and the head of Podium computes logits of
    masked tokens alone.
    """

    sparse_words = False  # the decoder has a dense gradient of the table

    def forward(self, tokens: Tokens, masked_index: Tensor, cls_index: Tensor) -> Dict[str, Tensor]:
        """Return masked_hidden [M, E], which `decoder` turns into logits, at positions masked_index [M] of the flat
        tokens."""
        model: Any = super()
        return {"masked_hidden": model.forward(tokens)[masked_index].to(self.decoder()[0].dtype)}

    def decoder(self) -> Tuple[Tensor, Tensor]:
        """Return word table [V, E], in the precision of products, and bias [V]."""
        model: Any = self
        last = model.get_output_embeddings()
        return last.factor, last.bias


class PassingDecoder(Dense):
    """Last matrix of a masked language modelling head, tied to the word table; it returns its input."""

    def forward(self, values: Tensor) -> Tensor:
        return values


class FastDropout(nn.Dropout):
    """nn.Dropout with the mask of layers.py, which takes less time on a CPU."""

    def forward(self, values: Tensor) -> Tensor:
        probability = self.p if self.training else 0.0
        return drop(values, draw_mask_for(values, probability), probability)


def group_lengths(lengths: Sequence[int], call: int) -> List[np.ndarray]:
    """Split lengths, the longest first, into groups with the least cost: their padded tokens, and `call` for each."""
    values, counts = np.unique(-np.asarray(lengths), return_counts=True)
    values, ends = -values, np.append(0, np.cumsum(counts))
    least, firsts = np.zeros(len(ends)), np.zeros(len(ends), dtype=np.int64)
    for end in range(1, len(ends)):  # the last group of the shortest split of the first `end` values
        costs = least[:end] + (ends[end] - ends[:end]) * values[:end] + call
        firsts[end], least[end] = costs.argmin(), costs.min()
    groups, end = [], len(values)
    while end:
        groups.append(np.array(lengths[ends[firsts[end]] : ends[end]]))
        end = firsts[end]
    return groups[::-1]


def build_encoder(task: str, model_type: str, values: Mapping[str, Any], labels: int) -> nn.Module:
    """Build a model with uninitialised weights: call draw_weights or load_state_dict next.

    Args:
        task: End of the name of its class, such as ForSequenceClassification; empty: the encoder alone.
        labels: Number of classes; 0 for a head without classes.

    Raises:
        CheckpointError: transformers has no such encoder, or refuses its configuration.
        ConfigError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"models of type {model_type} need the package transformers, which does not load in {sys.executable} "
            f"({error}): install podium[encoders] into it, or use a model that Podium trains itself (docs/models.md)"
        ) from None
    version, other = transformers.__version__, "install a newer version, or use another model (docs/models.md)"
    if model_type not in transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise CheckpointError(f"transformers {version} has no encoder of type {model_type}: {other}")
    options = {name: x for name, x in values.items() if not IGNORED_KEYS.match(name)}
    strict = getattr(importlib.import_module("huggingface_hub.errors"), "StrictDataclassError", ValueError)
    try:
        settings = transformers.AutoConfig.for_model(model_type, num_labels=labels or 2, **options)
        with torch.random.fork_rng(devices=[]):
            model: Any = getattr(transformers, f"AutoModel{task}").from_config(settings)
    except (*FAULTS, strict) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"transformers {version} cannot build {model_type} {task} ({reason}): {other}") from None
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        raise CheckpointError(f"{model_type} has no attention mask, so padding would change it: {other}")
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Dense
        elif type(module) is nn.Dropout:
            module.__class__ = FastDropout
    model.__class__ = type(type(model).__name__, (FlatModel, type(model)), {"versions": {"transformers": version}})
    return model


def build_masked_model(model_type: str, values: Mapping[str, Any]) -> nn.Module:
    """Build a model with a masked language modelling head and uninitialised weights; arguments as in `build_encoder`.

    Raises:
        CheckpointError, ConfigError: as `build_encoder`; or the head does not end with the word table.
    """
    model: Any = build_encoder("ForMaskedLM", model_type, values, 0)
    last, words = model.get_output_embeddings(), model.get_input_embeddings()
    if not isinstance(last, Dense) or last.weight is not words.weight or last.bias is None:
        raise CheckpointError(
            f"the masked language modelling head of this {model_type} does not end with the word table and a bias, so "
            "it cannot be pre-trained: use a model of another family (docs/models.md)"
        )
    others = {id(x) for module in model.modules() if module is not last for x in module.parameters(recurse=False)}
    last.__class__ = PassingDecoder
    for name, value in list(last.named_parameters()):
        if id(value) in others:  # saved once, by its other name
            delattr(last, name)
            object.__setattr__(last, name, value)
    model.__class__ = type(type(model).__name__, (MaskedModel, type(model)), {})
    return model


@functools.lru_cache(maxsize=None)
def describe_type(model_type: str) -> Tuple[str, str, FrozenSet[str]]:
    """Return for a model type: the beginning of its classes, that of its encoder's names, and the encoder's parts."""
    with torch.device("meta"):
        model: Any = build_encoder("", model_type, {"num_hidden_layers": 1}, 0)
    parts = frozenset(name for name, _ in model.named_children())
    return type(model).__name__[: -len("Model")], model.base_model_prefix, parts
