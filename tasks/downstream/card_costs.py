"""Tables of a model card that differ between equal trainings and equal exports: time, energy and speed on a host.

The hash of a card in its provenance leaves them out. A stranger could change what is left out, so that it consists of
numbers and known names only.
"""

import re
from collections.abc import Collection

from tasks.downstream.export.speed import TORCH
from tasks.stage.artifacts import EXPORT_FILES

NAMES = (
    "AMD",
    "ARM",
    "Ampere",
    "Apple",
    *("Atom(TM)", "Bronze", "CPU", "Celeron(R)", "Core", "Core(TM)", "Cortex", "EPYC", "EPYC-Rome", "EPYC-Milan"),
    *("EPYC-Genoa", "GPU", "GPUs", "Gen", "GeForce", "Gold", "Graphcore", "IPU", "IPUs", "Instinct", "Intel"),
    *("Intel(R)", "Max", "NVIDIA", "Neoverse", "Opteron", "PCIe", "PRO", "Pentium(R)", "Platinum", "Processor"),
    *("Quadro", "RTX", "GTX", "Radeon", "Ryzen", "SUPER", "Silver", "TITAN", "Tesla", "Threadripper", "Ti", "Ultra"),
    *("Virtual", "Xeon", "Xeon(R)", "aarch64", "of", "threads", "x", "@", "not", "recorded"),
)
"""Words of processors that are not numbers."""
MODEL = r"[A-Zvi]{0,4}-?\d[\dA-Z-]{0,20}[a-z]?|\d+-Core|\d+(?:\.\d+)?[GM]Hz|\d+th"
WORD = rf"(?:{'|'.join(map(re.escape, NAMES))}|{MODEL}),?"
HARDWARE = rf"{WORD}(?: {WORD})*"
NUMBER = r"[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?"
TIME = r"(?:\d+(?:\.\d)? s|\d+ min \d\d s|\d+ h \d\d min)"
ENERGY = (
    rf"(?:not recorded|{NUMBER} Wh \((?:unknown|measured by the processors' counters|"
    rf"estimated with {NUMBER} W for a (?:GPU|busy core))\))"
)
FILES = "|".join(re.escape(name) for name in (TORCH, *EXPORT_FILES.values()))
SPEED = (
    rf"On {HARDWARE}, with random tokens:\n\n"
    r"\| file \| threads \| tokens \| calls \| p50, ms \| p95, ms \| p99, ms \| sequences/s in batches of \d+ \|\n"
    rf"\|(?:---\|)+\n(?:\| `(?:{FILES})` \|(?: (?:{NUMBER}|too few calls|not measured) \|)+\n)+\n"
)


def name_hardware(text: str) -> str:
    """Return the words of a processor's name that a card may state."""
    return " ".join(word for word in text.split() if re.fullmatch(WORD, word)).rstrip(",") or "not recorded"


def remove_costs(card: str, trainings: Collection[str]) -> str:
    """Return a card without the tables that differ between equal trainings; any other text in them stays.

    Args:
        trainings: names of the trainings behind the model.
    """
    names = "|".join(map(re.escape, sorted(trainings)))
    row = rf"\| (?:{names}) \| {HARDWARE} \| {TIME}(?: after update [\d,]+)? \| {ENERGY} \|\n"
    costs = rf"\| training \| hardware \| time \| energy \|\n\|(?:---\|)+\n(?:{row})+\n"
    return re.sub(f"^(?:{costs}|{SPEED})", "", card, flags=re.MULTILINE)
