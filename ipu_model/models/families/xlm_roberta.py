"""XLM-RoBERTa (arXiv 1911.02116): RoBERTa with another vocabulary."""

import dataclasses

from ipu_model.models.families.roberta import FAMILY as ROBERTA

FAMILY = dataclasses.replace(ROBERTA, model_type="xlm-roberta", title="XLM-RoBERTa", prefix="XLMRoberta")
