"""Commands of the documents: where they stand, and who runs them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]
LANGUAGES = {"bash", "console", "text", "yaml", "python"}
"""Of fenced blocks: those of commands, of commands with what they print, and others; tests/test_production.py runs
those of Python."""
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document):
    return FENCE.findall((ROOT / document).read_text(encoding="utf-8"))


def commands(document):
    """Each command of a document on one line, without the comment behind it."""
    for language, text in blocks(document):
        whole = re.sub(r"\s*\\\n\s*", " ", text)
        lines = whole.splitlines()
        if language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        if language in ("bash", "console"):
            bare = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines)
            yield from (line for line in bare if line)


def every_command():
    """Command -> the documents that it is in."""
    found = {}
    for document in DOCUMENTS:
        for command in commands(document):
            found.setdefault(command, []).append(document)
    return found


NOT_RUN = {
    **dict.fromkeys(
        (". ", "export ", "ulimit ", "deactivate", "python3.8 -m venv ", "python3.11 -m venv ", "pip install -U pip",
         "pip install -c constraints/poplar.txt ", "~/podium-cuda/bin/pip ", "openssl ", "systemctl ",
         "git clone ... "),
        "a setting of the user's shell, or of a host that is not this one",
    ),
    **dict.fromkeys(
        ("make soak", "make faults", "make nightly"),
        "is tests itself, an hour of them and more",
    ),
    **dict.fromkeys(
        ("make load", "make bench", "python -m bench --job ", "python -m bench.fine_tuning ",
         "python -m bench.ipu_rows", "python -m bench.data_scale ", "python -m bench.estimates "),
        "measures this host for minutes to hours",
    ),
    **dict.fromkeys(
        ("make test-poptorch", "pip install <sdk>/", "source <sdk>/", "vipu ", "gc-info ",
         "docker run -it --network=host ", "dvc repro --pull compile_pretrain ", "podium run --preset ipu-",
         "podium run --preset glue-sst2-ipu-"),
        "needs IPUs and the Poplar SDK; the IPU tests run such jobs on a double of PopTorch",
    ),
    **dict.fromkeys(
        ("make gpu", "podium run --set device.runtime=cuda ", '"$PODIUM_DEVICE_PYTHON" -m pip '),
        "needs GPUs; the CUDA tests run where there are some",
    ),
    **dict.fromkeys(
        ("zcat more.jsonl.gz ", "podium run --set publish.target=hub "),
        "loads from or sends to the public Hub; tests do the same with a local server that speaks its protocol",
    ),
    **dict.fromkeys(
        ("make server", "make worker ", "prefect deployment run ", "prefect work-pool ", "prefect flow-run ",
         "PREFECT_API_URL=", "PREFECT_SERVER_ANALYTICS_ENABLED=false ", "podium deploy --queue ",
         "PODIUM_STAGE_KINDS=ipu ", "podium run --on-workers "),
        "needs a Prefect server and hosts of a team; tests/flows/workers/test_workers.py has a team on loopback",
    ),
    **dict.fromkeys(
        ("docker build ", "docker run --rm ", "docker compose ", "sbatch ", "kubectl "),
        "needs Docker, Slurm or Kubernetes; tests/test_deployment.py runs the steps and the script",
    ),
    **dict.fromkeys(("docker run -p ", "curl 127.0.0.1"), "needs Docker and the image of a server"),
    "podium verify ": "needs a signed release; tests/tasks/release/test_signing.py verifies some",
    "podium finetune classification --model MODEL --train train.csv --dev dev.csv --set publish.signing=key": (
        "needs a model; tests/tasks/release/test_signing.py signs a release"
    ),
    "dvc push --run-cache": "needs a DVC remote; tests/flows/dvc/test_remotes.py has one in a folder",
    "podium deploy --alarm ": "a block of your own; tests/flows/workers/test_deploy.py has a webhook",
    "prefect block create ": "needs a browser: the page of the server that creates a block",
    "dvc exp run --temp -S ": "trains the demo; it is DVC's own",
    "dvc exp show": "shows what DVC's own experiments left",
    "dvc metrics diff": "compares with another commit of the user",
    "podium publish --task squad": "needs a finished run; tests/flows/runs/test_runs.py publishes one of a toy project",
    "python -m tasks.downstream.parity ": "needs a finished run; tests/tasks/downstream has the stage",
    'podium predict published/podium-demo --text "Who rules Gibarath?" --context "..." --compare ': (
        "needs the demo; tests/tasks/downstream asks a small model"
    ),
    **dict.fromkeys(
        ("podium evaluate published/podium-demo ", "podium predict published/podium-demo questions.csv ",
         "podium predict published/reviews "),
        "needs a run before it; tests/tasks/downstream/inference has others",
    ),
    **dict.fromkeys(
        ("podium predict published/search ", "podium search "),
        "needs the run before it; tests/tasks/downstream/pairs has others",
    ),
    "podium evaluate evaluation/squad/spans.json ": (
        "needs a run on questions without an answer; tests/tasks/downstream has small ones"
    ),
}  # fmt: skip
"""Begin of commands -> why no test runs them as they stand. Those of `podium` are read and their parameters checked."""


def reason_of(command):
    return next((reason for begin, reason in NOT_RUN.items() if command.startswith(begin)), "")


RUN_BY = {
    "dvc exp run --temp --copy-paths my-data -S downstream.squad.finetune.learning_rate=3e-4": (
        "tests/flows/dvc/test_experiments.py: --copy-paths"
    ),
    "podium releases promote user/name": "tests/tasks/release/test_names.py: promote user/name",
    "podium releases promote user/name release-0123456789ab --as fallback": (
        "tests/tasks/release/test_names.py: --as fallback"
    ),
    "podium releases rollback user/name": "tests/tasks/release/test_names.py: rollback user/name",
    "podium releases user/name": "tests/tasks/release/test_names.py: releases user/name",
    "make setup": ".ci/fresh: make setup",
    "make check": ".ci/run: check test-device-env",
    "make test-device-env": ".ci/run: check test-device-env",
    "make test": ".ci/run: make test",
    "make demo": ".ci/run: make demo",
    "podium run": "Makefile: @podium run",
    "podium run --set pretrain.enabled=false": ".ci/run: podium run --set pretrain.enabled=false",
    "podium doctor": ".ci/fresh: podium doctor",
    'podium predict published/podium-demo --text "Who rules Gibarath?" --context "Gastifra rules '
    'Gibarath. The province of Gibarath is Bruntonesse, and long ago Mendan founded Gibarath."': (
        ".ci/fresh: podium predict published/small --text"
    ),
    "make docs": "test_the_site_is_built_without_a_warning",
    "python -m bench.ipu_estimates": "test_the_document_has_the_tables_that_the_command_makes",
    "python -m bench.ipu_estimates --write": "test_the_document_has_the_tables_that_the_command_makes",
    "podium plan --preset ipu-base-pod16-examples --price 12.5 --page plan.html": (
        "test_the_page_of_the_documents_shows_what_is_said"
    ),
    "podium plan": "test_a_plan_changes_nothing_in_the_project",
    "podium runs show slow": "test_runs_of_a_toy_of_three_stages",
    "podium open slow": "test_open_shows_a_run_the_newest_one_or_all",
    "podium open reviews": "test_open_shows_a_run_the_newest_one_or_all",
    "podium resume slow": "test_an_unfinished_run_resumes_with_the_parameters_and_options_it_had",
    "podium gate slow --set min_f1=80": "test_the_gate_decides_again_and_publish_reads_that_verdict",
    "podium run --like slow --name slower --set downstream.squad.finetune.epochs=4": (
        "test_a_run_like_another_has_its_parameters_and_release_folder_of_its_own"
    ),
    "podium compare slow fast": "test_compare",
    "podium compare reviews faster": "test_compare",
    "podium clean slow": "test_first_it_says_what_would_go_and_removes_nothing_unless_told",
    "dvc repro": "tests/faults/small_run.py: repro",
}  # fmt: skip
"""Command -> the test that runs it, or the same on other files; or a file and the words there."""
CARRIED_OUT_BY = {
    "clean": "test_first_it_says_what_would_go_and_removes_nothing_unless_told",
    "compare": "test_compare",
    "deploy": "test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back",
    "doctor": "test_doctor",
    "evaluate": "test_evaluate_and_predict",
    "finetune classification": "test_a_command_that_trains_comes_to_its_first_stage",
    "finetune glue": "test_a_command_that_trains_comes_to_its_first_stage",
    "finetune ner": "test_a_command_that_trains_comes_to_its_first_stage",
    "finetune pairs": "test_a_command_that_trains_comes_to_its_first_stage",
    "finetune squad": "test_the_first_steps_of_fine_tuning",
    "gate": "test_the_gate_decides_again_and_publish_reads_that_verdict",
    "open": "test_open_shows_a_run_the_newest_one_or_all",
    "params": "test_what_is_shown_follows_the_words_of_the_command",
    "plan": "test_a_plan_of_a_pod",
    "predict": "test_evaluate_and_predict",
    "pretrain": "test_a_command_that_trains_comes_to_its_first_stage",
    "publish": "test_publish_takes_a_run_by_its_name_and_changes_parameters_of_publishing_alone",
    "releases": "test_the_commands_of_the_documents",
    "reproduce": "test_a_run_is_repeated_from_its_own_revision",
    "resume": "test_an_unfinished_run_resumes_with_the_parameters_and_options_it_had",
    "run": "test_a_small_model_of_real_text_is_rejected_and_not_published",
    "runs": "test_runs_of_a_toy_of_three_stages",
    "search": "test_a_search_shows_the_nearest_lines",
    "sweep finetune": "test_a_sweep_that_is_interrupted_goes_on_and_its_best_run_is_published",
    "sweep pretrain": "test_a_sweep_of_pre_training_trains_each_recipe_up_to_its_phase_and_finishes_the_best",
    "verify": "test_the_command_prints_a_line_a_check_and_a_name_of_a_file_cannot_forge_one",
    "worker": "test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back",
}  # fmt: skip
"""Command of Podium -> the test that carries it out with such options, or goes up to its first stage."""
FIRST_STEPS = (
    "podium finetune squad --model my-bert --train train.json --dev dev.json --name first",
    "podium predict published/first dev.json answers.json",
    "podium finetune squad --model my-bert --train train.json --dev dev.json --name second --learning-rate 3e-5",
    "podium compare first second",
)
"""Of docs/finetune.md: run one after the other by a test of tests/test_documents.py."""
HERE = (
    "podium params show --set 'downstream.sst2={kind: glue, task: sst2}'",
    "podium params show --preset ipu-base-pod16-examples > chosen.yaml && mv chosen.yaml params.yaml",
    "podium plan --write",
    "podium evaluate predictions.json dev.json",
    "podium evaluate predictions.json dev.json --json --output scores.json",
    "podium compare first.json second.json --questions dev.json --changed changed.csv --output comparison.json",
    "podium runs",
    "podium runs rejected squad",
    "podium plan --ledger",
    'eval "$(podium --completion bash)"',
    "python -m ipu_model.ipu.executables list",
    "python -m ipu_model.ipu.executables prune --unused-for-days 30",
    "python -m ipu_model.ipu.executables prune --older-than-days 90",
    "python -m ipu_model.ipu.executables prune --larger-than-gb 50",
    "dvc remote add --local --default store /mnt/podium-store",
)
"""Run as they stand by a test of tests/test_documents.py, in this order."""
TRAINS = re.compile(r"podium (run|finetune|pretrain|sweep)( |$)")
"""Commands that train for minutes to days: tests/test_documents.py goes as far as before the first stage of those that
read files of the user, and reads the parameters of `podium run`."""
