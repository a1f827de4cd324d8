"""The model card of a GLUE classifier, with a model-index; sections it shares with other cards are in card.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.downstream.glue.scores import metric_names
from tasks.downstream.glue.tasks import GlueTask
from tasks.pages.markup import markdown_block, markdown_text, yaml_text
from tasks.project.errors import PublishError
from tasks.release.card import PROJECT, gate_section, origin_section, shape_of
from tasks.release.card_contents import contents_section, loaded_with, title_of
from tasks.release.card_training import CardFacts, hub_base, trained_how, training_section
from tasks.release.provenance import finite

TASK = "text-classification"
HUB_METRICS = {"matthews_correlation": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of the Hub's metrics where they differ from ours."""


def glue_card(task: GlueTask, facts: CardFacts) -> str:
    """README.md of the release: deterministic, English, needs no network.

    Raises:
        PublishError: a score is missing, or is no finite number.
    """
    title = f"fine-tuning on {task.title}"
    sections = (
        _introduction(task, facts),
        _scores(task, facts),
        training_section(facts, "glue_finetune", title, "glue_rows", f"glue-{task.name}-train"),
        gate_section(facts),
        _usage(task, facts),
        _limits(task),
        contents_section(facts),
        origin_section(facts),
    )
    return f"---\n{front_matter(task, facts)}\n---\n\n" + "\n\n".join(sections) + "\n"


def metrics_of(task: GlueTask, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The official metrics by name, percent, rounded to four decimals.

    Raises:
        PublishError: one is not there, or is no finite number.
    """
    names = [name for name in metrics if f"{name}_low" in metrics and name != "score"]
    if not any(name.startswith(task.metrics[0]) for name in names):
        raise PublishError(
            f"metrics/glue-{task.name}.json has no {task.metrics[0]}: run `dvc repro glue_evaluate@{task.name}` again; "
            "nothing was published"
        )
    return {name: round(finite(metrics[name], name), 4) for name in names}


def front_matter(task: GlueTask, facts: CardFacts) -> str:
    """YAML metadata of the Hub, without the dashes; metrics of GLUE are fractions there."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=TASK,
            task_name="Text Classification",
            dataset_type="glue",
            dataset_name=f"GLUE {task.title}",
            dataset_config=task.name,
            dataset_split=_hub_split(task, name),
            metric_type=_hub_metric(name),
            metric_name=name.replace("_", " ").capitalize(),
            metric_value=round(value / 100, 6),
        )
        for name, value in metrics_of(task, facts.metrics).items()
    ]
    data = ModelCardData(
        language=facts.language,
        license=facts.license,
        base_model=hub_base(facts),
        library_name="transformers",
        pipeline_tag=TASK,
        tags=["bert", "podium", "glue", task.name],
        model_name=title_of(facts),
        eval_results=results,
    )
    return yaml_text(data.to_dict()).strip()


def _hub_split(task: GlueTask, name: str) -> str:
    """The Hub's split that a metric of metrics_of was counted on."""
    return next(hub for split, hub in task.dev if name in metric_names(task, split).values())


def _hub_metric(name: str) -> str:
    return HUB_METRICS.get(name, name.removesuffix("_matched").removesuffix("_mismatched"))


def _introduction(task: GlueTask, facts: CardFacts) -> str:
    read = "a sentence" if len(task.columns) == 1 else f"a pair ({' and '.join(task.columns)})"
    gives = "a value" if task.is_regression else f"one of {len(task.labels)} classes ({', '.join(task.labels)})"
    return (
        f"# {markdown_text(title_of(facts))}\n\n"
        f"A BERT ({shape_of(facts.config)}) that reads {read} and gives {gives}: the task {task.title} of GLUE, "
        f"{trained_how(facts)} with {PROJECT}."
    )


def _scores(task: GlueTask, facts: CardFacts) -> str:
    lines = ["| metric | percent | 95% interval |", "|---|---|---|"]
    for name, value in metrics_of(task, facts.metrics).items():
        low, high = (finite(facts.metrics[f"{name}_{end}"], f"{name}_{end}") for end in ("low", "high"))
        lines.append(f"| {markdown_text(name.replace('_', ' '))} | {value:.2f} | {low:.2f} to {high:.2f} |")
    constant = finite(facts.metrics.get("constant_score"), "constant_score")
    return (
        f"## Scores\n\nOn {facts.metrics.get('examples'):,} labelled examples of the development data, counted as GLUE "
        "does.\n\n" + "\n".join(lines) + "\n\n"
        f"The best answer that is always the same has {constant:.2f}."
    )


USAGE = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

name = {name}
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name).eval()

encoded = tokenizer({texts}, truncation=True, max_length={length}, return_tensors="pt")
with torch.no_grad():
    logits = model(**encoded).logits[0]
print({answer})
"""


def _usage(task: GlueTask, facts: CardFacts) -> str:
    pair = '"The river rises in the hills.", "It ends in a lake."'
    code = USAGE.format(
        name=json.dumps(facts.name, ensure_ascii=False),
        texts=pair if len(task.columns) > 1 else '"A film that one wants to see again."',
        length=facts.parameters["glue_rows"]["row_length"],
        answer="float(logits[0])" if task.is_regression else "model.config.id2label[int(logits.argmax())]",
    )
    return f"## Use\n\n{loaded_with(facts)} transformers 4 or 5:\n\n{markdown_block(code, 'python')}"


def _limits(task: GlueTask) -> str:
    return (
        f"## Limits\n\n- Verified: the official metrics on the development data of {task.title}; the published weights "
        "are those the gate saw (equal hashes).\n"
        "- Not verified: GLUE's test data (their labels are not public), other domains and languages, bias and safety."
    )
