"""DistilBERT (arXiv 1910.01108): BERT without token types, with other names."""

from ipu_model.models.family import CONFIG_KEYS, Family

FAMILY = Family(
    "distilbert",
    "DistilBERT",
    "DistilBert",
    "distilbert",
    names=(
        ("bert.embeddings.", "distilbert.embeddings."),
        ("bert.encoder.", "distilbert.transformer."),
        (".attention.self.query.", ".attention.q_lin."),
        (".attention.self.key.", ".attention.k_lin."),
        (".attention.self.value.", ".attention.v_lin."),
        (".attention.output.dense.", ".attention.out_lin."),
        (".attention.output.LayerNorm.", ".sa_layer_norm."),
        (".intermediate.dense.", ".ffn.lin1."),
        (".output.dense.", ".ffn.lin2."),
        (".output.LayerNorm.", ".output_layer_norm."),
        ("cls.predictions.transform.dense.", "vocab_transform."),
        ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
        ("cls.predictions.bias", "vocab_projector.bias"),
        ("cls.predictions.decoder.weight", "vocab_projector.weight"),
    ),
    class_names=(("bert.pooler.dense.", "pre_classifier."),),
    config_keys={
        **{ours: ours for ours in ("vocab_size", "attention_dropout", "initializer_range")},
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": CONFIG_KEYS["max_positions"],
        "hidden_dropout": "dropout",
        "pad_id": "pad_token_id",
    },
    defaults={"type_vocab_size": 0, "num_layers": 6},
    computed={"activation": "gelu", "sinusoidal_pos_embds": False},
    pair_types=0,
    activation="relu",
    pools_in_head=True,
    drops_attention=False,
)
