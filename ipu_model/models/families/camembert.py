"""CamemBERT (arXiv 1911.03894): RoBERTa with another vocabulary."""

import dataclasses

from ipu_model.models.families.roberta import FAMILY as ROBERTA

FAMILY = dataclasses.replace(ROBERTA, model_type="camembert", title="CamemBERT", prefix="Camembert")
