"""The model card of a model that classifies texts, or gives them values."""

from __future__ import annotations

from tasks.downstream.texts import about
from tasks.downstream.texts.scores import TITLES, metric_names
from tasks.project.errors import PublishError
from tasks.release.card import CardFacts, CardTask, evaluated_on, hub_metadata, write_card
from tasks.release.provenance import finite

TASK = "text-classification"
HUB_METRICS = {"macro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of the Hub's metrics where they differ from ours."""


class Task(about.Task, CardTask):
    """Cards of classifiers, and of models that give a value."""

    def card(self, facts: CardFacts) -> str:
        """See `tasks.release.card.write_card`; on the Hub these metrics are fractions."""
        spec, metrics = self.spec, facts.metrics
        scores = self._scores(facts)
        dataset = (f"GLUE {spec.title}", "glue") if spec.name else evaluated_on(facts, "examples")
        titles = {name: name.replace("_", " ") if spec.name else TITLES[name] for name in scores}
        results = [
            {
                **({"dataset_config": spec.name, "dataset_split": self._hub_split(name)} if spec.name else {}),
                "metric_type": HUB_METRICS.get(name, name.removesuffix("_matched").removesuffix("_mismatched")),
                "metric_name": titles[name].capitalize() if spec.name else titles[name],
                "metric_value": round(value / 100, 6),
            }
            for name, value in scores.items()
        ]
        tags = ["glue", spec.name] if spec.name else ["text-regression" if self.is_regression else TASK]
        return write_card(
            __file__,
            "texts_card.md.j2",
            facts,
            f"fine-tuning on {spec.title if spec.name else 'labelled texts'}",
            hub_metadata(facts, TASK, tags, dataset, results),
            titles,
            task=spec,
            dataset=dataset[0],
            total=metrics["examples"],
            labels=spec.labels
            or [name for _, name in sorted(facts.config["id2label"].items(), key=lambda one: int(one[0]))],
            constant_score=finite(metrics.get("constant_score"), "constant_score"),
        )

    def _scores(self, facts: CardFacts) -> dict[str, float]:
        """The official metrics by name, percent, rounded to four decimals.

        Raises:
            PublishError: there is none, or one is no finite number.
        """
        spec, metrics = self.spec, facts.metrics
        again = f"run `dvc repro {facts.entry.stage('evaluate')}` again"
        if not spec.name:
            names = [name for name in TITLES if name in metrics]
            missing = "" if names else f"score: {again}"
        else:
            names = [name for name in metrics if f"{name}_low" in metrics and name != "score"]
            whole = any(name.startswith(spec.metrics[0]) for name in names)
            missing = "" if whole else f"{spec.metrics[0]}: {again}; nothing was published"
        if missing:
            raise PublishError(f"metrics/{facts.entry.name}.json has no {missing}")
        return {name: round(finite(metrics[name], name), 4) for name in names}

    def _hub_split(self, name: str) -> str:
        """The Hub's split that a metric of GLUE was counted on."""
        return next(hub for split, hub in self.spec.dev if name in metric_names(self.spec, split).values())
