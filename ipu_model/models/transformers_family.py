"""Families without a file of their own: every other encoder of transformers, by its model_type. Standard library only.

Their models are transformers' own modules (transformers_encoder.py), on CPU and CUDA, with its parameter names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Collection, Dict, Mapping, Tuple

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.models.config import HEAD_DROPOUTS, NOT_OF_AN_ENCODER, SIZES, ModelConfig
from ipu_model.models.family import CONFIG_KEYS, Family

DROPOUTS = {
    "hidden_dropout": ("hidden_dropout_prob", "hidden_dropout", "embedding_dropout", "mlp_dropout"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
}
"""Field of ModelConfig -> keys of config.json that set it."""
OTHER_FAMILY = "fine-tune them on cpu or cuda, or start from a model that Podium computes itself (docs/models.md)"
TITLES = {"albert": "ALBERT", "deberta-v2": "DeBERTa-v2", "mpnet": "MPNet"}
"""Names for users that differ from the model type."""
DISENTANGLED = ("deberta", "deberta-v2")
"""Model types whose scores are sums of three products, two of them gathered from products with relative positions."""
ATTENTION_COPIES = 6
MASKED = "ForMaskedLM"
"""End of the name of the classes that can be pre-trained."""
AFTER_PADDING = ("data2vec-text", "esm", "ibert", "longformer", "mpnet", "roberta-prelayernorm", "xlm-roberta-xl")
"""Model types whose first token has the position after the pad id."""


@dataclass(frozen=True)
class TransformersFamily(Family):
    """Encoder that transformers computes; classes and names of weights come from the installed transformers."""

    def read_fields(self, values: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the fields of ModelConfig, and in `settings` all of config.json that describes the encoder.

        Raises:
            ConfigError: the model is not an encoder.
        """
        if values.get("is_encoder_decoder"):
            raise ConfigError(f"{self.model_type} models are not encoders (is_encoder_decoder)")
        fields = {**super().read_fields(values), "type_vocab_size": 0}
        fields.update({ours: values[keys[0]] for ours, keys in _find_dropouts(values).items() if keys})
        if self.model_type in AFTER_PADDING:
            fields["max_positions"] -= fields.get("pad_id", 1) + 1
        fields["settings"] = {name: value for name, value in values.items() if name not in NOT_OF_AN_ENCODER}
        return fields

    def write_values(self, config: ModelConfig) -> Dict[str, Any]:
        """Return the content of a config.json for an encoder: that of the model it was read from.

        Raises:
            ConfigError: the dropout was changed, but the model's config.json has no key for it.
        """
        if config.settings is None:  # of a job without a model folder, which is only measured
            sizes = {theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items() if ours in SIZES}
            return {"model_type": self.model_type, **sizes}
        values, before = dict(config.settings), self.read_fields(config.settings)
        for ours, keys in _find_dropouts(values).items():
            if getattr(config, ours) != before.get(ours, getattr(ModelConfig, ours)):
                if not keys:
                    raise ConfigError(f"config.json has none of {', '.join(DROPOUTS[ours])}: {ours} cannot be changed")
                values.update(dict.fromkeys(keys, getattr(config, ours)))
        return values

    def check(self, runtime: str, pretrains: bool) -> None:
        if runtime == "ipu":
            raise ConfigError(f"{self.model_type} models cannot be run on IPUs: {OTHER_FAMILY}")
        _load_encoders().describe_type(self.model_type)

    def build(self, head: Any, config: ModelConfig, labels: int) -> Any:
        if head.pretrains:
            return _load_encoders().build_masked_model(self.model_type, self.write_values(config))
        return _load_encoders().build_encoder(head.suffix, self.model_type, self.write_values(config), labels)

    def can_pretrain(self, head: Any, config: ModelConfig) -> bool:
        if head.suffix != MASKED:
            return False
        try:
            self.build(head, config, 0)
        except CheckpointError:
            return False
        return True

    def class_name(self, suffix: str) -> str:
        return f"{_load_encoders().describe_type(self.model_type)[0]}{suffix}"

    @property
    def inside(self) -> str:
        return f"{_load_encoders().describe_type(self.model_type)[1]}."

    def is_unknown(self, name: str, known: Collection[str]) -> bool:
        """Return whether a weight is of a layer that the model does not have; others, such as poolers, have no use."""
        return re.sub(r"\d+", "0", name) in {re.sub(r"\d+", "0", other) for other in known}

    def add_base(self, name: str) -> str:
        _, base, parts = _load_encoders().describe_type(self.model_type)
        return f"{base}.{name}" if name.partition(".")[0] in parts else name

    def describe(self) -> Dict[str, Any]:
        """Return the part of a job's plan that is special to this family."""
        return {"encoder": f"{self.model_type} of transformers, sequences padded in groups of similar length"}


def _find_dropouts(values: Mapping[str, Any]) -> Dict[str, Tuple[str, ...]]:
    """Return the keys of a config.json that set each dropout."""
    return {ours: tuple(key for key in keys if values.get(key) is not None) for ours, keys in DROPOUTS.items()}


def _load_encoders() -> Any:
    """Import torch and transformers only where a model is built."""
    from ipu_model.models import transformers_encoder

    return transformers_encoder


def make_family(model_type: str) -> Family:
    """Return the family of a model type without a file of its own."""
    model_type = str(model_type)  # a damaged config.json may have anything
    keys = {ours: theirs for ours, theirs in CONFIG_KEYS.items() if ours not in ("type_vocab_size", *HEAD_DROPOUTS)}
    return TransformersFamily(
        model_type,
        TITLES.get(model_type, model_type),
        model_type,
        base="",
        names=(),
        config_keys=keys,
        computed={},
        pair_types=0,
        attention_copies=ATTENTION_COPIES if model_type in DISENTANGLED else 1,
        own=False,
    )
