"""ELECTRA (arXiv 2003.10555): BERT with embeddings of their own width, and no pooler."""

from ipu_model.models.family import CONFIG_KEYS, Family

FAMILY = Family(
    "electra",
    "ELECTRA",
    "Electra",
    "electra",
    names=(
        ("bert.", "electra."),
        ("cls.predictions.transform.", "generator_predictions."),
        ("cls.predictions.bias", "generator_lm_head.bias"),
        ("cls.predictions.decoder.weight", "generator_lm_head.weight"),
    ),
    class_names=(("classifier.", "classifier.out_proj."), ("bert.pooler.dense.", "classifier.dense.")),
    config_keys={**CONFIG_KEYS, "embedding_size": "embedding_size"},
    defaults={"hidden_size": 256, "num_heads": 4, "intermediate_size": 1024, "embedding_size": 128},
    activation="gelu",
    pools_in_head=True,
    drops_first=True,
)
