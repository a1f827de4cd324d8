"""Interface of a family of encoders: BERT and its relatives. Standard library only.

In Podium, the models of every family have BERT's parameter names. A family translates them, and the keys of
config.json, when a model folder is read or written. ipu_model/models/families has one file for each.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, Mapping, Tuple

from ipu_model.core.errors import ConfigError
from ipu_model.models.config import ModelConfig

SAME = ("vocab_size", "hidden_size", "intermediate_size", "type_vocab_size", "layer_norm_eps", "initializer_range")
CONFIG_KEYS = {
    **{name: name for name in SAME},
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "sequence_dropout": "classifier_dropout",
    "token_dropout": "classifier_dropout",
    "pad_id": "pad_token_id",
}
"""Field of ModelConfig -> key of BertConfig."""
COMPUTED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
BARE = re.compile(r"(embeddings|embeddings_project|encoder|transformer|pooler|layers|final_norm)\.")
"""Beginnings of names in a folder that was saved from an encoder without head."""

SPANS = "qa_outputs."
"""Beginning of Podium's names of the last layer of the head that answers questions."""


@dataclass(frozen=True)
class Family:
    """Description of a family: everything that differs between encoders on Podium's own path."""

    model_type: str
    """Name in transformers; that of its file, with hyphens."""
    title: str
    prefix: str
    """Beginning of the names of its classes in transformers."""
    base: str
    """Beginning of the names of its encoder's weights in transformers."""
    names: Tuple[Tuple[str, str], ...]
    """(ours, theirs) of parts of parameter names, replaced in this order: with a leading dot anywhere, else at the
    beginning."""
    class_names: Tuple[Tuple[str, str], ...] = ()
    """The same for the head that classifies sequences."""
    span_name: str = SPANS
    """Beginning in transformers of the names of the last layer of the head that answers questions."""
    config_keys: Mapping[str, str] = field(default_factory=lambda: CONFIG_KEYS)
    """Field of ModelConfig -> key of config.json; fields without a key have their default."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ModelConfig whose default is not BERT's."""
    computed: Mapping[str, Any] = field(default_factory=lambda: COMPUTED)
    """Keys of config.json that decide the computation, and the supported values."""
    offset_positions: bool = False
    """True if the first token of a sequence has the position after the pad id, instead of 0."""
    pair_types: int = 2
    """Token types of a pair of texts, and of a model with new weights."""
    activation: str = "tanh"
    """Function in torch after the dense layer that pools the first token."""
    pools_in_head: bool = False
    """True if this dense layer is part of the head that classifies sequences, not of the encoder."""
    drops_first: bool = False
    """True if the head that classifies sequences also applies dropout before this layer."""
    drops_attention: bool = True
    """True if dropout is applied to the output of the attention in each layer."""
    attention_copies: int = 1
    """Tensors of the size of the attention scores, relative to those of BERT: an upper bound for estimates."""
    own: bool = True
    """True if Podium computes the encoder: packed, on every runtime, in pre-training as well."""
    rotary: bool = False
    """True if layers are those of models/rotary.py, without a table of positions; then every head has the dense layer
    that pools, with a norm."""

    def configure(self, **fields: Any) -> ModelConfig:
        """Return the architecture of a model with new weights.

        Raises:
            ConfigError: a field is out of range, or not a parameter of this family.
        """
        values = {"type_vocab_size": self.pair_types, **self.defaults, **fields, "family": self.model_type}
        config = ModelConfig(**values)
        if self.offset_positions:
            config = dataclasses.replace(config, position_offset=config.pad_id + 1)
        for name in fields.keys() - self.config_keys.keys() - {"family"}:
            fixed = getattr(ModelConfig, name)
            if fields[name] != fixed:
                raise ConfigError(f"model.{name}={fields[name]}: a {self.model_type} model has {fixed}")
        return config

    def read_fields(self, values: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the fields of ModelConfig in the content of a config.json."""
        explicit = {ours: values[theirs] for ours, theirs in self.config_keys.items() if values.get(theirs) is not None}
        fields = {"max_positions": ModelConfig.max_positions, **self.defaults, **explicit, "family": self.model_type}
        if self.offset_positions:
            fields["position_offset"] = fields["pad_id"] + 1
            fields["max_positions"] -= fields["position_offset"]
        return fields

    def with_global_theta(self, config: ModelConfig, theta: float) -> ModelConfig:
        """Return the architecture with another base of the rotation of positions in layers with global attention.

        Raises:
            ConfigError: the family does not rotate positions, or the base is out of range.
        """
        raise ConfigError(f"global_rope_theta={theta:g}: a {self.model_type} model has no rotary positions")

    def initial_spread(self, name: str, config: ModelConfig) -> Tuple[float, float]:
        """Return the standard deviation of the initial numbers of a matrix, and how many of them they stay within."""
        return config.initializer_range, math.inf

    def build(self, head: Any, config: ModelConfig, labels: int) -> Any:
        """Return a model with this head (models/head.py) and uninitialised weights."""
        return head.build(config, labels)

    def can_pretrain(self, head: Any, config: ModelConfig) -> bool:
        """Return whether this model has this head (models/head.py), which pre-training uses."""
        return True

    def class_name(self, suffix: str) -> str:
        """Return the name of a class in transformers; `suffix` is its end, as in Head.suffix."""
        return self.prefix + suffix

    @property
    def inside(self) -> str:
        """Beginning of Podium's names of the encoder's weights."""
        return "bert."

    def is_unknown(self, name: str, known: Collection[str]) -> bool:
        """Return whether a weight that the model lacks shows that the folder does not match its config.json."""
        return name.startswith(self.inside)

    def check(self, runtime: str, pretrains: bool) -> None:
        """Check that this Python can run a job with such a model.

        Raises:
            ConfigError: it cannot; the message names what is missing.
        """

    def describe(self) -> Dict[str, Any]:
        """Return the part of a job's plan that is special to this family."""
        return {}

    def write_values(self, config: ModelConfig) -> Dict[str, Any]:
        """Return the content of a config.json for an encoder: the inverse of `read_fields`."""
        fields = {**dataclasses.asdict(config), "max_positions": config.max_positions + config.position_offset}
        fields["embedding_size"] = config.table_width
        values = {theirs: fields[ours] for ours, theirs in self.config_keys.items() if fields[ours] is not None}
        return {**values, **self.computed, "model_type": self.model_type}

    def to_ours(self, name: str, architecture: str = "") -> str:
        """Translate the name of a weight in a model folder, including older names and those of a bare encoder.

        `architecture` is the class of transformers that wrote it, if it is known.
        """
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(old):
                name = name[: -len(old)] + new
        spans = (SPANS,) if architecture.endswith("ForQuestionAnswering") else ()
        pairs = (*[(ours, self.span_name) for ours in spans], *self.class_names, *self.names)
        return _translate(self.add_base(name), [(theirs, ours) for ours, theirs in pairs])

    def add_base(self, name: str) -> str:
        """Return the name in a model with a head, for a name in a folder that was saved from an encoder alone."""
        return f"{self.base}.{name}" if BARE.match(name) else name

    def to_theirs(self, state: Mapping[str, Any]) -> Dict[str, Any]:
        """Return weights by the names that transformers has for them."""
        pooled = any(name.startswith("bert.pooler.") for name in state)
        pairs = ((SPANS, self.span_name), *(self.class_names if pooled else ()), *self.names)
        return {_translate(name, pairs): value for name, value in state.items()}


def _translate(name: str, pairs: Any) -> str:
    for old, new in pairs:
        if old.startswith("."):
            name = name.replace(old, new)
        elif name.startswith(old):
            name = new + name[len(old) :]
    return name
