"""The model card: front matter with a model-index, and one page a person can read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tasks.pages.markup import markdown_block, markdown_code, markdown_text, yaml_text
from tasks.project.errors import PublishError
from tasks.release.card_contents import contents_section, evaluated_on, loaded_with, title_of
from tasks.release.card_training import CardFacts, hub_base, trained_how, training_section
from tasks.release.provenance import finite

TASK = "question-answering"
PROJECT = "Podium"


def model_card(facts: CardFacts) -> str:
    """README.md of the release: deterministic, English, needs no network.

    Raises:
        PublishError: exact_match or f1 is missing, or is not a finite number.
    """
    sections = (
        _introduction(facts),
        _scores(facts),
        training_section(facts, "finetune", "fine-tuning on questions", "squad_rows", "squad-train"),
        gate_section(facts),
        _usage(facts),
        _limits(facts),
        contents_section(facts),
        origin_section(facts),
    )
    return f"---\n{front_matter(facts)}\n---\n\n" + "\n\n".join(sections) + "\n"


def front_matter(facts: CardFacts) -> str:
    """YAML metadata of the Hub, without the dashes.

    Metric values are python floats: a numpy scalar would end as a binary blob in the YAML, a NaN as `.nan`.
    """
    from huggingface_hub import EvalResult, ModelCardData

    dataset, kind = evaluated_on(facts)
    results = [
        EvalResult(
            task_type=TASK,
            task_name="Question Answering",
            dataset_type=kind,
            dataset_name=dataset,
            dataset_split="dev",
            metric_type=metric,
            metric_name=title,
            metric_value=score(facts.metrics, metric),
        )
        for metric, title in (("exact_match", "Exact match"), ("f1", "F1"))
    ]
    data = ModelCardData(
        language=facts.language,
        license=facts.license,
        base_model=hub_base(facts),
        library_name="transformers",
        pipeline_tag=TASK,
        tags=["bert", "podium", "question-answering"],
        model_name=title_of(facts),
        eval_results=results,
    )
    return yaml_text(data.to_dict()).strip()


def score(metrics: Mapping[str, Any], name: str) -> float:
    """A percentage of metrics/squad.json, rounded to four decimals.

    Raises:
        PublishError: it is not there, not finite, or outside 0 to 100.
    """
    if name not in metrics:
        raise PublishError(f"metrics/squad.json has no {name}: run `dvc repro evaluate` again; nothing was published")
    value = finite(metrics[name], f"{name} of metrics/squad.json")
    if not 0 <= value <= 100:
        raise PublishError(f"{name}={value} of metrics/squad.json must be a percentage between 0 and 100")
    return round(value, 4)


def shape_of(config: Mapping[str, Any]) -> str:
    """Layers, sizes and vocabulary of a model, in words."""
    return (
        f"number of layers {config['num_hidden_layers']:d}, hidden size {config['hidden_size']:d}, "
        f"attention heads {config['num_attention_heads']:d}, vocabulary entries {config['vocab_size']:,}"
    )


def _introduction(facts: CardFacts) -> str:
    return (
        f"# {markdown_text(title_of(facts))}\n\n"
        f"A BERT ({shape_of(facts.config)}) that answers a question by marking a span of a given text "
        f"(extractive question answering), {trained_how(facts)} with {PROJECT}."
    )


def _scores(facts: CardFacts) -> str:
    lines = ["| metric | percent | 95% interval |", "|---|---|---|"]
    for metric, title in (("exact_match", "exact match"), ("f1", "F1")):
        low, high = facts.metrics.get(f"{metric}_low"), facts.metrics.get(f"{metric}_high")
        interval = "not measured"
        if low is not None and high is not None:
            interval = f"{finite(low, f'{metric}_low'):.2f} to {finite(high, f'{metric}_high'):.2f}"
        lines.append(f"| {title} | {score(facts.metrics, metric):.2f} | {interval} |")
    total = facts.metrics.get("total")
    counted = f"{total:,} questions" if isinstance(total, int) else "questions"
    return (
        f"## Scores\n\nOn {counted} of {markdown_text(evaluated_on(facts)[0])}, counted as the SQuAD v1.1 script "
        "does.\n\n" + "\n".join(lines)
    )


def gate_section(facts: CardFacts) -> str:
    """The gate's verdict with all its checks."""
    verdict = "accepted" if facts.gate.get("accepted") else "rejected"
    lines = [f"## Release gate\n\nThe gate **{verdict}** this model."]
    reasons = [f"- {markdown_text(reason)}" for reason in facts.gate.get("reasons", [])]
    if reasons:
        lines.append("\n".join(reasons))
    checks = facts.gate.get("checks", [])
    if checks:
        table = ["| check | passed | found | required |", "|---|---|---|---|"]
        table += [
            f"| {markdown_text(check['name'])} | {'yes' if check['ok'] else 'no'} | {markdown_text(check['found'])} | "
            f"{markdown_text(check['required'])} |"
            for check in checks
        ]
        lines.append("\n".join(table))
    return "\n\n".join(lines)


USAGE = """\
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

name = {name}
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForQuestionAnswering.from_pretrained(name).eval()

question = "Where does the river rise?"
context = "The river rises in the northern hills and ends in a lake."
encoded = tokenizer(
    question, context, truncation="only_second", max_length={length}, return_offsets_mapping=True, return_tensors="pt"
)
offsets = encoded.pop("offset_mapping")[0].tolist()
with torch.no_grad():
    output = model(**encoded)
scores = output.start_logits[0][:, None] + output.end_logits[0][None, :]  # of every start and end
in_context = torch.tensor([segment == 1 for segment in encoded.sequence_ids(0)])
allowed = (in_context[:, None] & in_context[None, :]).triu().tril({further})
first, last = divmod(int(scores.masked_fill(~allowed, float("-inf")).argmax()), len(offsets))
print(context[offsets[first][0] : offsets[last][1]])
"""


def _usage(facts: CardFacts) -> str:
    name = json.dumps(facts.name, ensure_ascii=False)  # as Python writes a text, too
    code = USAGE.format(
        name=name,
        length=facts.parameters["squad_rows"]["row_length"],
        further=facts.parameters["evaluate"]["max_answer_length"] - 1,
    )
    pipeline = f'pipeline("{TASK}", {name})'
    ask = f'podium ask {"FOLDER" if facts.name == "." else shlex.quote(facts.name)} "question" --context "text"'
    return (
        f"## Use\n\n{loaded_with(facts)} transformers 4 or 5 "
        "(5 dropped the `question-answering` pipeline; 4 still has it: "
        f"{markdown_code(pipeline)}):\n\n{markdown_block(code, 'python')}\n\n"
        f"From a {PROJECT} checkout, long texts included: {markdown_code(ask)}."
    )


def _limits(facts: CardFacts) -> str:
    dataset = markdown_text(evaluated_on(facts)[0])
    generated = facts.parameters["questions"]["source"] == "demo"
    about = (
        " These questions and texts are generated: the scores say that the pipeline learns, nothing about real text."
        if generated
        else ""
    )
    return (
        f"## Limits\n\n- Verified: exact match and F1 on {dataset}; the published weights are those the gate saw "
        f"(equal hashes).{about}\n"
        "- Not verified: other domains and languages, questions without an answer (the model always gives a span), "
        "bias and safety.\n"
        "- An answer is a piece of the given text; the model knows no facts of its own."
    )


def origin_section(facts: CardFacts) -> str:
    """Code, plan, parameters and data behind the release."""
    origin = facts.provenance
    git = origin["git"]
    revision = markdown_code(git["revision"]) if git["revision"] else "not recorded (no git checkout)"
    if git["dirty"]:
        revision += " with changes that were not committed"
    lock = origin["dvc_lock_sha256"]
    failed = [name for name, verdict in origin["data"]["verdicts"].items() if verdict["valid"] is not True]
    count = len(origin["data"]["verdicts"])
    verdicts = f"{count - len(failed)} of {count} data sets valid" if count else "not recorded"
    if failed:
        verdicts += f" (not valid: {markdown_text(', '.join(failed))})"
    return (
        f"## Provenance\n\n- Code: {revision}\n"
        f"- Plan: dvc.lock {f'SHA-256 {markdown_code(lock)}' if lock else 'not recorded'}\n"
        "- Parameters: in `provenance.json`, without paths and other text of who set them; SHA-256 "
        f"{markdown_code(origin['parameters_sha256'])}\n"
        f"- Data verdicts: {verdicts}\n\n"
        "A release is a tag `release-...`, named by the hash of its files; a state without a tag was never released."
    )
