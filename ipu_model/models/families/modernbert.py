"""ModernBERT (arXiv 2412.13663): rotary positions, windows of attention in most layers, gated feed-forward parts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Tuple

from ipu_model.core.errors import ConfigError
from ipu_model.models.config import NOT_OF_AN_ENCODER, ModelConfig
from ipu_model.models.family import CONFIG_KEYS, SAME, Family

GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETAS = {GLOBAL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
"""Kind of layer -> the older key of its base of rotation, and the default."""
EVERY = "global_attn_every_n_layers"
FLAGS = {"norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False, "decoder_bias": True}
ACTIVATIONS, POOLINGS = ("gelu", "relu", "tanh"), ("cls", "mean")
OTHER_ROTATIONS = ("head_dim", "rope_scaling", "partial_rotary_factor")
FREE = {"classifier_activation": "gelu", "classifier_pooling": "cls", "local_attention": 128, "embedding_dropout": 0.0}
"""Keys beyond the sizes that describe the computation, with the defaults of transformers, as in FLAGS."""


class ModernBert(Family):
    """Family whose config.json is kept whole, because it has more keys than ModelConfig has fields."""

    def configure(self, **fields: Any) -> ModelConfig:
        return super().configure(**{"pad_id": 0, **fields})

    def read_fields(self, values: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the fields of ModelConfig, and in `settings` all of config.json that describes the encoder.

        Raises:
            ConfigError: a key has a value that is not supported.
        """
        settings = {name: value for name, value in values.items() if name not in NOT_OF_AN_ENCODER}
        fields = {**super().read_fields(values), "settings": settings}
        _check(settings, fields)
        list_layers(settings, fields.get("num_layers", self.defaults["num_layers"]))
        return fields

    def write_values(self, config: ModelConfig) -> Dict[str, Any]:
        """Return the content of a config.json: that of the model it was read from, with the dropout of `config`."""
        settings = config.settings or {}
        values = {**FLAGS, **FREE, **settings, **super().write_values(config)}
        layers, count = settings.get("num_hidden_layers", config.num_layers), config.num_layers
        if layers != count:  # layers were copied (ModelFolder.for_layers): each stays as it was
            kinds = [LOCAL if window else GLOBAL for _, window in list_layers(settings, layers)]
            values["layer_types"] = [kinds[(number + 1) * layers // count - 1] for number in range(count)]
        if config.hidden_dropout != settings.get("mlp_dropout", 0.0):
            values["embedding_dropout"] = config.hidden_dropout
        if not {"layer_types", "rope_parameters"} & values.keys():  # older versions of transformers read these
            values.update({EVERY: 3, **dict(THETAS.values()), **settings})
        return values

    def with_global_theta(self, config: ModelConfig, theta: float) -> ModelConfig:
        settings = dict(config.settings or {})
        older, rotations = THETAS[GLOBAL][0], settings.get("rope_parameters")
        if rotations:
            rotation = {"rope_type": "default", **rotations.get(GLOBAL, {}), "rope_theta": theta}
            settings["rope_parameters"] = {**rotations, GLOBAL: rotation}
        if older in settings or not rotations:
            settings[older] = theta
        list_layers(settings, settings.get("num_hidden_layers", config.num_layers))
        return dataclasses.replace(config, settings=settings)

    def initial_spread(self, name: str, config: ModelConfig) -> Tuple[float, float]:
        """Return what transformers takes: less for what is added to the residual and for the pooler."""
        std = config.initializer_range
        if name.startswith(("classifier.", "qa_outputs.")):
            std = config.hidden_size**-0.5
        elif name.endswith(".output.dense.weight") or ".pooler." in name:
            std /= math.sqrt(2.0 * config.num_layers)
        return std, (config.settings or {}).get("initializer_cutoff_factor") or 2.0


def list_layers(values: Mapping[str, Any], count: int) -> List[Tuple[float, int]]:
    """Return for each layer the base of its rotation, and the largest distance that it attends to; 0: any.

    Raises:
        ConfigError: a key has a value that is not supported.
    """
    every, kinds = values.get(EVERY, 3), values.get("layer_types")
    if kinds is None:
        if type(every) is not int or every < 1:
            raise ConfigError(f"{EVERY} is {every!r:.80}; a whole number from 1 on is required")
        kinds = [LOCAL if number % every else GLOBAL for number in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        raise ConfigError(f"layer_types must have {GLOBAL} or {LOCAL} for each of {count} layers, found {kinds!r:.80}")
    thetas = {kind: _read_theta(values, kind) for kind in THETAS}
    window = values.get("local_attention", FREE["local_attention"])
    if type(window) is not int or window < 2 or window % 2:
        raise ConfigError(f"local_attention is {window!r:.80}; an even number of tokens from 2 on is required")
    return [(thetas[kind], window // 2 if kind == LOCAL else 0) for kind in kinds]


def _read_theta(values: Mapping[str, Any], kind: str) -> float:
    older, default = THETAS[kind]
    rotations = values.get("rope_parameters") or {}
    if not isinstance(rotations, dict) or set(rotations) - set(THETAS):
        raise ConfigError(f"rope_parameters must have {GLOBAL} and {LOCAL} only, found {rotations!r:.80}")
    rotation = rotations.get(kind) or {}
    if not isinstance(rotation, dict) or rotation.get("rope_type", "default") != "default":
        raise ConfigError(f"rope_parameters.{kind} is {rotation!r:.80}; only the rope_type 'default' is supported")
    if other := sorted(set(rotation) - {"rope_type", "rope_theta"}):
        raise ConfigError(f"rope_parameters.{kind}.{other[0]} is not supported: remove it if it has no effect")
    theta = rotation.get("rope_theta", values.get(older, default))
    if type(theta) not in (int, float) or not 1 < theta < 1e12:
        raise ConfigError(f"the base of the rotation of {kind} is {theta!r:.80}; a number above 1 is required")
    return float(theta)


def _check(values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name in FLAGS:
        if type(values.get(name, False)) is not bool:
            raise ConfigError(f"{name} is {values[name]!r:.80}; true or false is required")
    for name, known in (("classifier_activation", ACTIVATIONS), ("classifier_pooling", POOLINGS)):
        if values.get(name, known[0]) not in known:
            raise ConfigError(f"{name} is {values[name]!r:.80}; one of {', '.join(known)} is required")
    rate, heads = values.get("embedding_dropout", 0.0), fields.get("num_heads", ModelConfig.num_heads)
    if type(rate) not in (int, float) or not 0 <= rate <= 1:
        raise ConfigError(f"embedding_dropout is {rate!r:.80}; a number from 0 to 1 is required")
    for name in OTHER_ROTATIONS:
        if values.get(name) is not None:
            raise ConfigError(f"{name} is {values[name]!r:.80}, which is not supported: remove it if it has no effect")
    if fields["hidden_size"] % (2 * heads):
        raise ConfigError(f"hidden_size {fields['hidden_size']} does not give {heads} heads of an even size")


FAMILY = ModernBert(
    "modernbert",
    "ModernBERT",
    "ModernBert",
    "model",
    names=(
        ("bert.embeddings.word_embeddings.", "model.embeddings.tok_embeddings."),
        ("bert.embeddings.LayerNorm.", "model.embeddings.norm."),
        ("bert.encoder.layer.", "model.layers."),
        ("bert.encoder.LayerNorm.", "model.final_norm."),
        (".attention.LayerNorm.", ".attn_norm."),
        (".attention.qkv.", ".attn.Wqkv."),
        (".attention.output.dense.", ".attn.Wo."),
        (".intermediate.LayerNorm.", ".mlp_norm."),
        (".intermediate.dense.", ".mlp.Wi."),
        (".output.dense.", ".mlp.Wo."),
        ("bert.pooler.dense.", "head.dense."),
        ("bert.pooler.LayerNorm.", "head.norm."),
        ("cls.predictions.bias", "decoder.bias"),
        ("cls.predictions.decoder.", "decoder."),
    ),
    span_name="classifier.",
    config_keys={
        **{
            ours: CONFIG_KEYS[ours]
            for ours in (*SAME, "num_layers", "num_heads", "max_positions", "pad_id")
            if ours not in ("type_vocab_size", "layer_norm_eps")
        },
        "layer_norm_eps": "norm_eps",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        **dict.fromkeys(("sequence_dropout", "token_dropout", "span_dropout"), "classifier_dropout"),
    },
    defaults={
        "type_vocab_size": 0,
        "num_layers": 22,
        "intermediate_size": 1152,
        "max_positions": 8192,
        "pad_id": 50283,
        "layer_norm_eps": 1e-5,
        **dict.fromkeys(("hidden_dropout", "attention_dropout", "sequence_dropout", "token_dropout"), 0.0),
    },
    computed={"hidden_activation": "gelu"},
    pair_types=0,
    pools_in_head=True,
    rotary=True,
)
