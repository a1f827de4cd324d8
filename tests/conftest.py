"""Files that take minutes are begun first, so that no process waits for the last of them at the end."""

import gc
import os

import tasks  # noqa: F401 (it says which memory pyarrow takes, before a test imports pyarrow)
from ipu_model.distributed.process import limit_spinning

LONGEST = (
    "test_pages.py",
    "test_preflight.py",
    "test_run_again.py",
    "test_runs.py",
    "test_plan_command.py",
    "test_dvc_session.py",
    "test_remotes.py",
    "test_run_page.py",
    "test_golden.py",
    "test_plans.py",
    "test_pipeline.py",
    "test_run_artifacts.py",
    "test_terminal.py",
    "test_documents.py",
    "test_commands.py",
    "test_hub_sources.py",
    "test_environments.py",
    "test_clean.py",
    "test_kill_points.py",
    "test_policy.py",
    "test_architecture.py",
    "test_plan_written.py",
)


gc.disable()
os.environ["PODIUM_LEDGER"] = ""  # jobs of tests do not count as jobs of this host
# Before a test imports torch: several processes of tests share the cores, and threads that wait would take them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
limit_spinning()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
