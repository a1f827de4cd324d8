"""Commands of the documents: where they stand, and who runs them."""

import re

from tests.places import ROOT

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]
LANGUAGES = {"bash", "console", "text", "yaml", "python"}
"""Of fenced blocks; tests/test_production.py runs those of Python."""
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
    return list(dict.fromkeys(command for document in DOCUMENTS for command in commands(document)))


ELSEWHERE = {
    "run by .ci/run and .ci/fresh": ("make setup", "make check", "make test-device-env", "make test", "make demo"),
    "run by tests/test_site.py": ("make docs",),
    "a setting of the user's shell, or of a host that is not this one": (
        ". ", "export ", "ulimit ", "deactivate", "python3.8 -m venv ", "python3.11 -m venv ", "pip install -U pip",
        "pip install -c constraints/poplar.txt ", "~/podium-cuda/bin/pip ", "openssl ", "systemctl ", "git clone ... ",
    ),
    "tests itself, or measures this host, for minutes to hours": (
        "make soak", "make faults", "make nightly", "make load", "make bench", "python -m bench",
    ),
    "needs IPUs and the Poplar SDK; the IPU tests run such jobs on a double of PopTorch": (
        "make test-poptorch", "pip install <sdk>/", "source <sdk>/", "vipu ", "gc-info ",
        "docker run -it --network=host ", "dvc repro --pull compile_pretrain ",
    ),
    "needs GPUs; the CUDA tests run where there are some": ("make gpu", '"$PODIUM_DEVICE_PYTHON" -m pip '),
    "needs a Prefect server; tests/flows/workers/test_workers.py has a team on loopback": (
        "make server", "make worker ", "prefect ", "PREFECT_API_URL=", "PREFECT_SERVER_ANALYTICS_ENABLED=false ",
    ),
    "needs Docker, Slurm or Kubernetes; tests/test_deployment.py runs the steps and the script": (
        "docker build ", "docker run --rm ", "docker compose ", "sbatch ", "kubectl ", "docker run -p ",
        "curl 127.0.0.1",
    ),
    "needs a remote or a commit of the user, or is DVC's own; tests/flows/dvc has remotes and experiments": (
        "dvc push --run-cache", "dvc exp ", "dvc metrics diff", "dvc repro",
    ),
    "needs a finished run; tests/tasks/downstream has the stage": ("python -m tasks.downstream.parity ",),
}  # fmt: skip
"""Who runs commands of others than Podium, or why no one does as they stand -> how they begin."""
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
