"""Next useful step after a run."""

from pathlib import Path

from flows.runs import listing, report
from flows.runs.stage_plan import ALL
from tasks.downstream.gate.verdict_text import format_advice
from tasks.stage import artifacts

QA_SCORES = ({"exact_match", "f1"}, {"exact", "f1"})
"""Scores that mark a question answering model, which takes a context: SQuAD 1.1 and 2.0."""


def suggest_next(run: report.RunReport) -> str:
    """Return the next useful step after a run."""
    rejected = [result for result in run.results.values() if result["decision"] and not result["decision"]["accepted"]]
    if rejected:
        if advice := format_advice(rejected[0]["decision"], run.name):
            return " ".join(advice)
        name = rejected[0]["name"]
        page = Path(run.folder) / artifacts.evaluation_page(name)
        limit = f"--set downstream.{name}.gate.LIMIT=VALUE"
        if run.name != listing.PROJECT:
            limit = f"podium gate {run.name} --set LIMIT=VALUE"
        return f"open {page} to see the answers; train with more data or other parameters, or change a limit: {limit}"
    run_name = "" if run.name == listing.PROJECT else f" {run.name}"
    published = [result for result in run.results.values() if result["published"] is not None]
    if published:
        asked = [result for result in published if any(result["scores"].keys() >= pair for pair in QA_SCORES)]
        release = report.model_name((asked or published)[0]["published"])
        return f"podium predict {release} --text {'QUESTION --context TEXT' if asked else 'TEXT'}"
    to = run.options.get("to")
    if to or run.options.get("part", ALL) != ALL:
        return f"repeat the command without {'--to' if to else '--part'} to run the rest"
    if run.results:
        return f"podium publish{run_name} releases the accepted model"
    trained = [stage.name.partition("@")[2] for stage in run.stages if stage.name.startswith("pretrain@")]
    if not trained:
        return "podium runs lists the runs"
    model = Path(run.folder).name or artifacts.model_folder(trained[-1])
    return f"podium finetune KIND --model {model} --train FILE"
