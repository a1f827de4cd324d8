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
    """Language and text of each fenced block."""
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


IPUS = "needs IPUs and the Poplar SDK; the IPU tests run such jobs on a double of PopTorch"
GPUS = "needs GPUs; the CUDA tests run where there are some"
HUB = "loads from or sends to the public Hub; tests do the same with a local server that speaks its protocol"
OWN_SHELL = "a setting of the user's shell, or of a host that is not this one"
SERVER = "needs a Prefect server and hosts of a team; tests/flows/workers/test_workers.py has a team on loopback"
SIGNED = "needs a signed release; tests/tasks/release/test_signing.py verifies some"
CONTAINERS = "needs Docker, Slurm or Kubernetes; tests/test_deployment.py runs the steps and the script"
SERVES = "needs Docker and the image of a server"
MEASURES = "measures this host for minutes to hours"

NOT_RUN = {
    ". .venv/bin/activate": OWN_SHELL,
    "make soak": "is tests itself",
    "make faults": "is tests itself, an hour of them",
    "make load": MEASURES,
    "make nightly": "is tests itself, hours of them",
    "make test-poptorch": IPUS,
    "make bench": MEASURES,
    'make bench BENCH="--quick"': MEASURES,
    'make bench BENCH="--only squad-tiny"': MEASURES,
    "make bench BENCH=\"--only squad-tiny --variant podium --variant 'hf grouped bf16' --rounds 9\"": MEASURES,
    'make bench BENCH="--data FOLDER"': MEASURES,
    'make bench BENCH="--vocabulary vocab.txt"': MEASURES,
    "python -m bench.fine_tuning --model DIR --train train.json --dev dev.json --epochs 2 --padded-updates 40": (
        MEASURES
    ),
    "python -m bench --job runs/checkouts/RUN/runs/JOB/ID/job.json": MEASURES,
    "python -m bench.ipu_rows": MEASURES,
    "python -m bench.ipu_rows --instances 1 2 4 8": MEASURES,
    "python -m bench.ipu_rows --memory --updates 60": MEASURES,
    "python -m bench.data_scale --sizes 10 100 1000 --source files --hosts 8": MEASURES,
    "python -m bench.estimates --only WORDS": MEASURES,
    "python -m bench.estimates --docs": MEASURES,
    "python3.11 -m venv ~/podium-cuda": OWN_SHELL,
    "~/podium-cuda/bin/pip install torch numpy pyarrow safetensors pytest": OWN_SHELL,
    "export PODIUM_DEVICE_PYTHON=~/podium-cuda/bin/python": OWN_SHELL,
    "podium run --set device.runtime=cuda --set device.precision=auto --set device.micro_batch_size=256": GPUS,
    "podium run --set device.runtime=cuda --set device.processes=8": GPUS,
    '"$PODIUM_DEVICE_PYTHON" -m pip install transformers accelerate matplotlib': GPUS,
    "make gpu": GPUS,
    "zcat more.jsonl.gz | podium predict user/bert-sst2 - | jq -r .label | sort | uniq -c": HUB,
    "python3.8 -m venv ~/podium-device": OWN_SHELL,
    ". ~/podium-device/bin/activate": OWN_SHELL,
    "pip install -U pip": OWN_SHELL,
    "pip install <sdk>/poptorch-*.whl": IPUS,
    "pip install -c constraints/poplar.txt numpy pyarrow safetensors pytest": OWN_SHELL,
    "deactivate": OWN_SHELL,
    'docker run -p 8080:80 -v "$PWD/published":/data ghcr.io/huggingface/text-embeddings-inference:cpu-1.8 '
    "--model-id /data/reviews": SERVES,
    "curl 127.0.0.1:8080/predict -H 'Content-Type: application/json' "
    """-d '{"inputs": "A fine film.", "truncate": true}'""": SERVES,
    'docker run -p 8000:8000 -v "$PWD/models":/models nvcr.io/nvidia/tritonserver:VERSION-py3 '
    "tritonserver --model-repository /models": SERVES,
    "docker build -f deploy/Dockerfile --build-arg TORCH=cpu -t podium .": CONTAINERS,
    'docker run --rm -v podium-runs:/srv/podium/runs -v "$PWD/my-files":/data:ro podium finetune classification '
    "--model /data/encoder --train /data/train.csv --name reviews": CONTAINERS,
    "docker compose -f deploy/compose.yaml --env-file deploy/.env up --build --detach": CONTAINERS,
    "docker compose -f deploy/compose.yaml --env-file deploy/.env run --rm cpu run --on-workers": CONTAINERS,
    "sbatch --gpus=1 --time=04:00:00 deploy/podium.sbatch finetune squad --model my-bert --train train.json "
    "--name answers": CONTAINERS,
    "kubectl create secret generic podium --from-env-file=podium.env": CONTAINERS,
    "kubectl create secret generic podium-dvc --from-file=.dvc/config.local": CONTAINERS,
    "kubectl apply -f deploy/kubernetes.yaml": CONTAINERS,
    "source <sdk>/enable": IPUS,
    "vipu create partition pod-a --size 16 --reconfigurable": IPUS,
    "export IPUOF_VIPU_API_HOST=10.1.3.101 IPUOF_VIPU_API_PARTITION_ID=pod-a": IPUS,
    "gc-info -l": IPUS,
    "ulimit -l unlimited": OWN_SHELL,
    "docker run -it --network=host --ipc=host --ulimit memlock=-1:-1 --cap-add=IPC_LOCK --device=/dev/infiniband/ "
    "-e IPUOF_VIPU_API_HOST -e IPUOF_VIPU_API_PARTITION_ID "
    '-v "$PWD":/srv/podium -w /srv/podium IMAGE bash': IPUS,
    "export PODIUM_DEVICE_PYTHON=~/podium-device/bin/python": OWN_SHELL,
    "export PODIUM_EXECUTABLE_CACHE=/some/disk/executables": OWN_SHELL,
    "podium run --preset ipu-base-pod16-examples": IPUS,
    "dvc repro --pull compile_pretrain compile": IPUS,
    "dvc push --run-cache": "needs a DVC remote; tests/flows/dvc/test_remotes.py has one in a folder",
    "podium run --preset ipu-large-pod64-examples --set device.processes=2": IPUS,
    "podium run --preset glue-sst2-ipu-base-pod4": IPUS,
    "export HF_TOKEN=...": OWN_SHELL,
    'export PREFECT_SERVER_API_AUTH_STRING="admin:..."': OWN_SHELL,
    'export PREFECT_API_AUTH_STRING="admin:..."': OWN_SHELL,
    "make server": SERVER,
    "make worker KIND=cpu": SERVER,
    "make worker KIND=flows": SERVER,
    "PREFECT_API_URL=http://127.0.0.1:4200/api .venv/bin/prefect deployment run podium/podium --watch": SERVER,
    "PREFECT_SERVER_ANALYTICS_ENABLED=false prefect server start --host 127.0.0.1 --port 4200": SERVER,
    "git clone ... /srv/podium && cd /srv/podium && make setup": OWN_SHELL,
    "export PREFECT_API_URL=http://127.0.0.1:4200/api": OWN_SHELL,
    "podium deploy --queue ipu/pod-a --queue ipu/pod-b": SERVER,
    "podium deploy --alarm slack-webhook/team": "a block of your own; tests/flows/workers/test_deploy.py has a webhook",
    "systemctl enable --now podium-worker@data podium-worker@flows": OWN_SHELL,
    "systemctl stop podium-worker@pod-a": OWN_SHELL,
    "PODIUM_STAGE_KINDS=ipu podium --project /srv/podium worker --pool ipu --queue pod-a": SERVER,
    "prefect deployment run podium/podium -p preset=ipu-base-pod16-examples -p device_queue=ipu/pod-a --watch": SERVER,
    "prefect deployment run podium/pretrain-only -p device_queue=ipu/pod-a": SERVER,
    "prefect deployment run podium/finetune-and-release --params "
    '\'{"overrides": ["downstream.squad.finetune.learning_rate=5e-5"]}\'': SERVER,
    "podium run --on-workers --device-queue ipu/pod-a": SERVER,
    "prefect block create slack-webhook": "needs a browser: the page of the server that creates a block",
    "prefect work-pool pause ipu": SERVER,
    "prefect flow-run ls --state RUNNING": SERVER,
    "prefect work-pool resume ipu": SERVER,
    "podium run --set publish.target=hub --set downstream.squad.publish.repository=user/name": HUB,
    "openssl ecparam -genkey -name prime256v1 -noout -out signing.pem": OWN_SHELL,
    "openssl ec -in signing.pem -pubout -out signing.pub": OWN_SHELL,
    "export PODIUM_SIGNING_KEY=$PWD/signing.pem": OWN_SHELL,
    "podium finetune classification --model MODEL --train train.csv --dev dev.csv --set publish.signing=key": (
        "needs a model; tests/tasks/release/test_signing.py signs a release"
    ),
    "podium verify published/NAME --key signing.pub": SIGNED,
    "podium verify FOLDER --key signing.pub --tag release-0123456789ab": SIGNED,
    "podium verify user/name@release-0123456789ab --key signing.pub": SIGNED,
    "dvc exp run --temp -S downstream.squad.finetune.learning_rate=3e-4": "trains the demo; it is DVC's own",
    "dvc exp show": "shows what DVC's own experiments left",
    "dvc metrics diff": "compares with another commit of the user",
    "podium publish --task squad": "needs a finished run; tests/flows/runs/test_runs.py publishes one of a toy project",
    "python -m tasks.downstream.parity squad cpu:bf16 --baseline cpu:fp32 --model models/squad": (
        "needs a finished run; tests/tasks/downstream has the stage"
    ),
    'podium predict published/podium-demo --text "Who rules Gibarath?" --context "..." --compare cpu:bf16': (
        "needs the demo; tests/tasks/downstream asks a small model"
    ),
    "podium evaluate published/podium-demo dev.json": "needs the demo; tests/tasks/downstream/inference has others",
    "podium predict published/podium-demo questions.csv answers.parquet": (
        "needs the demo; tests/tasks/downstream/inference has others"
    ),
    'podium predict published/reviews --text "a great film"': (
        "needs the run before it; tests/tasks/downstream/inference has others"
    ),
    "podium predict published/search notes.txt vectors.npy": (
        "needs the run before it; tests/tasks/downstream/pairs has others"
    ),
    'podium search published/search notes.txt "who left for Rome"': (
        "needs the run before it; tests/tasks/downstream/pairs has others"
    ),
    "podium evaluate evaluation/squad/spans.json dev.json --na-probs evaluation/squad/null_odds.json "
    "--na-threshold -2.5": "needs a run on questions without an answer; tests/tasks/downstream has small ones",
}  # fmt: skip
"""Command -> why no test runs it as it stands. Those of `podium` are read and their parameters checked all the same."""


RUN_BY = {
    "dvc exp run --temp --copy-paths my-data -S downstream.squad.finetune.learning_rate=3e-4": (
        "tests/flows/dvc/test_experiments.py",
        "--copy-paths",
    ),
    "podium releases promote user/name": ("tests/tasks/release/test_names.py", "promote user/name"),
    "podium releases promote user/name release-0123456789ab --as fallback": (
        "tests/tasks/release/test_names.py",
        "--as fallback",
    ),
    "podium releases rollback user/name": ("tests/tasks/release/test_names.py", "rollback user/name"),
    "podium releases user/name": ("tests/tasks/release/test_names.py", "releases user/name"),
    "make setup": (".ci/fresh", "make setup"),
    "make check": (".ci/run", "check test-device-env"),
    "make test-device-env": (".ci/run", "check test-device-env"),
    "make test": (".ci/run", "make test"),
    "make demo": (".ci/run", "make demo"),
    "podium run": ("Makefile", "@podium run"),
    "podium run --set pretrain.enabled=false": (".ci/run", "podium run --set pretrain.enabled=false"),
    "podium doctor": (".ci/fresh", "podium doctor"),
    'podium predict published/podium-demo --text "Who rules Gibarath?" --context "Gastifra rules Gibarath. The '
    'province of Gibarath is Bruntonesse, and long ago Mendan founded Gibarath."': (
        ".ci/fresh",
        "podium predict published/small --text",
    ),
    "make docs": ("tests/test_site.py", "test_the_site_is_built_without_a_warning"),
    "python -m bench.ipu_estimates": (
        "tests/bench/test_ipu_estimates.py",
        "test_the_document_has_the_tables_that_the_command_makes",
    ),
    "python -m bench.ipu_estimates --write": (
        "tests/bench/test_ipu_estimates.py",
        "test_the_document_has_the_tables_that_the_command_makes",
    ),
    "podium plan --preset ipu-base-pod16-examples --price 12.5 --page plan.html": (
        "tests/flows/commands/test_plan_command.py",
        "test_the_page_of_the_documents_shows_what_is_said",
    ),
    "podium plan": ("tests/flows/commands/test_plan_command.py", "test_figures_are_written_with_their_units"),
    "podium runs show slow": ("tests/flows/views/test_compare_runs.py", "test_show_says_all_of_one_run"),
    "podium open slow": ("tests/flows/commands/test_run_again.py", "test_open_shows_a_run_the_newest_one_or_all"),
    "podium open reviews": ("tests/flows/commands/test_run_again.py", "test_open_shows_a_run_the_newest_one_or_all"),
    "podium resume slow": (
        "tests/flows/commands/test_run_again.py",
        "test_a_failed_run_resumes_with_the_parameters_and_options_it_had",
    ),
    "podium gate slow --set min_f1=80": (
        "tests/flows/commands/test_run_again.py",
        "test_the_gate_decides_again_and_publish_reads_that_verdict",
    ),
    "podium run --like slow --name slower --set downstream.squad.finetune.epochs=4": (
        "tests/flows/commands/test_run_again.py",
        "test_a_run_like_another_has_its_parameters_and_release_folder_of_its_own",
    ),
    "podium compare slow fast": (
        "tests/flows/views/test_compare_runs.py",
        "test_parameters_scores_and_the_paired_test_against_the_first",
    ),
    "podium compare reviews faster": (
        "tests/flows/views/test_compare_runs.py",
        "test_parameters_scores_and_the_paired_test_against_the_first",
    ),
    "podium clean slow": (
        "tests/flows/commands/test_clean.py",
        "test_first_it_says_what_would_go_and_removes_nothing_unless_told",
    ),
    "dvc repro": ("tests/faults/small_run.py", "repro"),
}  # fmt: skip
"""Command -> the file that runs it, or the same on other files, and the words or the test there."""
TEAM = (
    "tests/flows/workers/test_workers.py",
    "test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back",
)
UP_TO_STAGES = ("tests/test_documents.py", "test_a_command_that_trains_comes_to_its_first_stage")
CARRIED_OUT_BY = {
    "clean": RUN_BY["podium clean slow"],
    "compare": ("tests/golden/test_golden.py", "test_compare"),
    "deploy": TEAM,
    "doctor": ("tests/golden/test_golden.py", "test_doctor"),
    "evaluate": ("tests/golden/test_golden.py", "test_evaluate_and_predict"),
    "finetune classification": UP_TO_STAGES,
    "finetune glue": UP_TO_STAGES,
    "finetune ner": UP_TO_STAGES,
    "finetune pairs": UP_TO_STAGES,
    "finetune squad": ("tests/test_documents.py", "test_the_first_steps_of_fine_tuning"),
    "gate": RUN_BY["podium gate slow --set min_f1=80"],
    "open": RUN_BY["podium open slow"],
    "params": ("tests/flows/commands/test_params_command.py", "test_what_is_shown_follows_the_words_of_the_command"),
    "plan": ("tests/golden/test_golden.py", "test_a_plan_of_a_pod"),
    "predict": ("tests/golden/test_golden.py", "test_evaluate_and_predict"),
    "pretrain": UP_TO_STAGES,
    "publish": ("tests/flows/runs/test_runs.py", "test_publish_takes_a_run_by_its_name_alone"),
    "releases": ("tests/tasks/release/test_names.py", "test_the_commands_of_the_documents"),
    "reproduce": ("tests/flows/commands/test_reproduce.py", "test_a_run_is_repeated_from_its_own_revision"),
    "resume": RUN_BY["podium resume slow"],
    "run": ("tests/test_end_to_end.py", "test_a_small_model_of_real_text_is_rejected_and_not_published"),
    "runs": ("tests/golden/test_golden.py", "test_runs_of_a_toy_of_three_stages"),
    "search": ("tests/tasks/downstream/pairs/test_pairs_stages.py", "test_a_search_shows_the_nearest_lines"),
    "sweep finetune": (
        "tests/flows/commands/test_sweep.py",
        "test_a_sweep_that_is_interrupted_goes_on_and_its_best_run_is_published",
    ),
    "sweep pretrain": (
        "tests/flows/commands/test_sweep.py",
        "test_a_real_sweep_of_pre_training_selects_the_recipe_with_the_lowest_loss",
    ),
    "verify": (
        "tests/tasks/release/test_signing.py",
        "test_the_command_prints_a_line_a_check_and_a_name_of_a_file_cannot_forge_one",
    ),
    "worker": TEAM,
}
"""Command of Podium -> the file and the test that carry it out with options like those of the documents; UP_TO_STAGES:
up to the first stage, as the stages are those of `run` on other parameters."""
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
