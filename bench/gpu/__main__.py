"""`python -m bench.gpu` (`make gpu`): tests, parity, speed compared with Trainer, profile and estimates, on one GPU.

Each part is a process of its own with a time limit, and writes its results item by item: a part that fails, or whose
time ends, keeps what it has, and the next part starts. No network, no Prefect and no DVC are needed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.gpu.cases import CASES, CPU, CUDA, TEST_CASES, GpuCase
from bench.gpu.report import write_pictures, write_report
from ipu_model.core.files import write_json

NEEDED = ("torch", "numpy", "pyarrow", "safetensors", "pytest")
OF_PEERS = ("transformers", "accelerate")
OLDEST = (2, 11)
LAST_SECONDS = 15.0
"""Kept for the report."""
TAIL_LINES = 15
ROUNDS, WARMUP, UPDATES = 3, 4, 8
TRAINER_FORMS: dict[str, dict[str, Any]] = {
    "Trainer sdpa, grouped": {"attention": "sdpa", "compile": False, "padded": False},
    "Trainer sdpa, compiled, padded": {"attention": "sdpa", "compile": True, "padded": True},
    "Trainer flash-attn, grouped": {"attention": "flash_attention_2", "compile": False, "padded": False},
}
"""Forms of Trainer that are tried: the fastest counts. The last one needs the package flash-attn."""
OURS, OURS_PLAIN = "podium", "podium, not compiled"


@dataclass(frozen=True)
class Part:
    """Part of the command.

    Args:
        share: Of the time that is left when it starts, at most.
        measure: (device, seconds left) -> results, each as soon as it is there.
    """

    name: str
    share: float
    measure: Callable[[str, Callable[[], float]], Iterator[dict[str, Any]]]


def run_tests(device: str, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Run the CUDA tests; on a CPU, which skips those that need a GPU, one file of them."""
    chosen = (
        ["tests/ipu_model", "-k", "cuda or compiled"]
        if device == CUDA
        else ["tests/ipu_model/models/test_attention.py"]
    )
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=20", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(1.0, left()))
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    yield {"outcome": lines[-1] if lines else done.stderr[-500:], "passed": done.returncode == 0, "failed": failed}


def measure_parity(device: str, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Compare every head and family with the CPU, in both precisions."""
    from bench.gpu.parity import compare, list_pairs

    for (head, family), precision in itertools.product(list_pairs(), ("fp32", "bf16")):
        if left() > 0:
            yield compare(head, family, device, precision)


def measure_speed(device: str, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Compare the updates of each case with the forms of Trainer, in turn."""
    from bench.gpu.device import describe_device, measure_matrix_peak

    yield {**describe_device(device), "peak_flops": measure_matrix_peak(device)}
    for case in list_cases(device):
        if left() > 0:
            yield compare_speed(case, device, left)


def list_cases(device: str) -> tuple[GpuCase, ...]:
    """Return the cases of a device."""
    return CASES if device == CUDA else TEST_CASES


def list_variants(device: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return worker and settings of the configurations that can run here."""
    found = {OURS: ("gpu-ours", {"compile": "auto"})}
    if device == CUDA:
        found[OURS_PLAIN] = ("gpu-ours", {"compile": "none"})
    forms = dict(itertools.islice(TRAINER_FORMS.items(), 1 if device == CPU else None))
    if all(importlib.util.find_spec(name) for name in OF_PEERS):
        for name, settings in forms.items():
            if settings["attention"] != "flash_attention_2" or importlib.util.find_spec("flash_attn"):
                found[name] = ("gpu-peer", settings)
    return found


def compare_speed(case: GpuCase, device: str, left: Callable[[], float]) -> dict[str, Any]:
    """Measure rounds of all variants of a case in turn; the variants share the device, so the order is A B C A B C."""
    from bench.children import Child, ChildFailed

    children: dict[str, Child] = {}
    found: dict[str, Any] = {}
    spec = {"case": asdict(case), "device": device, "threads": os.cpu_count() if device == CUDA else 1}
    spec |= {"rounds": ROUNDS, "warmup": WARMUP, "updates": UPDATES if device == CUDA else 2}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except ChildFailed as error:
            found[name]["failure"] = str(error)
            if name in children:
                children.pop(name).kill()

    def start(name: str, worker: str, settings: dict[str, Any]) -> None:
        children[name] = Child({**spec, "worker": worker, "settings": settings}, {})
        found[name].update(children[name].facts)

    def measure(name: str, number: int) -> None:
        (sample,) = children[name].measure(number)
        found[name]["rounds"].append({"tokens": sample.units, "seconds": sample.wall, **sample.notes})

    try:
        for name, (worker, settings) in list_variants(device).items():
            found[name] = {"rounds": []}
            attempt(name, functools.partial(start, name, worker, settings))
        for number in range(ROUNDS):
            for name in list(children):
                if left() > 0:
                    attempt(name, functools.partial(measure, name, number))
    finally:
        for child in children.values():
            child.kill()
    return {"case": case.name, "goal": case.goal, "variants": found}


def measure_profile(device: str, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Measure where the time of an update goes, for the first cases."""
    from bench.gpu.profiling import profile_updates

    for case in list_cases(device)[:2]:
        if left() > 0:
            yield profile_updates(case, device)


def measure_estimates(device: str, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Compare estimates with jobs, for some cases."""
    from bench.gpu.estimates import compare

    for case in list_cases(device)[:3]:
        if left() > 0:
            yield compare(case, device)


PARTS = (
    Part("tests", 0.2, run_tests),
    Part("parity", 0.2, measure_parity),
    Part("speed", 0.75, measure_speed),
    Part("profile", 0.5, measure_profile),
    Part("estimates", 1.0, measure_estimates),
)


def run_part(part: Part, device: str, seconds: float, folder: Path) -> None:
    """Run a part in this process, and write its results after each item."""
    results: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    for one in part.measure(device, lambda: until - time.monotonic()):
        results.append(one)
        write_json(folder / f"{part.name}.json", results)


def start_part(part: Part, device: str, seconds: float, folder: Path) -> str:
    """Run a part in a process of its own, and return why it did not end well; empty if it did."""
    command = [sys.executable, "-m", "bench.gpu", "--part", part.name, "--device", device]
    command += ["--seconds", str(seconds), "--output", str(folder)]
    with (folder / f"{part.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(seconds + LAST_SECONDS / 3)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
    if code is None:
        return f"its {seconds:.0f} s were over"
    tail = (folder / f"{part.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return "" if code == 0 else f"exit code {code}\n" + "\n".join(tail)


def find_missing(device: str) -> str:
    """Return what the command needs and this Python lacks; empty if nothing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"bench.gpu needs {', '.join(missing)}: install them into the environment of {sys.executable}"
    import torch

    from ipu_model.core.units import parse_version

    if parse_version(torch.__version__) < OLDEST:
        return "bench.gpu needs torch {}.{} or later, found {}".format(*OLDEST, torch.__version__)
    if device == CUDA and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU here: see nvidia-smi, or install a torch built for CUDA"
    return ""


def main() -> int:
    """Run all parts, or the one that is named."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure this project on one GPU.")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for everything (default: 540)")
    parser.add_argument("--output", type=Path, default=Path("reports/gpu"), metavar="FOLDER")
    parser.add_argument("--device", choices=(CUDA, CPU), default=CUDA, help="cpu: tiny models, to test this command")
    parser.add_argument("--part", choices=[part.name for part in PARTS], help="run one part alone")
    options = parser.parse_args()
    folder: Path = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.part is not None:
        run_part(next(x for x in PARTS if x.name == options.part), options.device, options.seconds, folder)
        return 0
    if missing := find_missing(options.device):
        print(missing)
        return 2
    if lacking := [name for name in OF_PEERS if importlib.util.find_spec(name) is None]:
        print(f"without {' and '.join(lacking)} nothing is compared with Trainer", flush=True)
    until, failures = time.monotonic() + options.seconds - LAST_SECONDS, dict[str, str]()
    for part in PARTS:
        for stale in folder.glob(f"{part.name}.*"):
            stale.unlink()
    for part in PARTS:
        seconds = part.share * (until - time.monotonic())
        if seconds > 1:
            print(f"{part.name}: at most {seconds:.0f} s", flush=True)
            failures[part.name] = start_part(part, options.device, seconds, folder)
        else:
            failures[part.name] = "no time was left"
        report = write_report(folder, failures)
    print(f"{report}\n{folder / 'gpu.md'}{write_pictures(folder)}")
    return 0 if not any(failures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
