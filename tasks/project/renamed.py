"""Parameters that were called otherwise before: whoever still writes the old name is told the new one."""

from __future__ import annotations

QUESTIONS = "downstream.squad"
MOVED = {
    "questions": f"{QUESTIONS}.data",
    "validate.min_questions": f"{QUESTIONS}.data.min_examples",
    "squad_rows": f"{QUESTIONS}.rows",
    "finetune": f"{QUESTIONS}.finetune",
    "evaluate": f"{QUESTIONS}.evaluate",
    "parity": f"{QUESTIONS}.parity",
    "gate": f"{QUESTIONS}.gate",
    "publish.folder": f"{QUESTIONS}.publish.folder",
    "publish.repository": f"{QUESTIONS}.publish.repository",
    "publish.data_name": f"{QUESTIONS}.publish.data_name",
    "ipu.finetune": f"{QUESTIONS}.ipu.finetune",
    "ipu.predict": f"{QUESTIONS}.ipu.predict",
}
"""Name, or beginning of names, before -> now."""
ENTRY = "downstream.<name>"
OF_ENTRIES = {
    "glue.tasks": "an entry of `downstream` for each task now: downstream.<name>={kind: glue, task: sst2}",
    "glue": f"{ENTRY}.data",
    "glue_rows": f"{ENTRY}.rows",
    "glue_finetune": f"{ENTRY}.finetune",
    "glue_gate": f"{ENTRY}.gate",
    "glue_publish": f"{ENTRY}.publish",
    "ipu.glue": f"{ENTRY}.ipu.finetune and {ENTRY}.ipu.predict",
}
"""The same for what every entry of kind glue states for itself now."""


def new_name(name: str) -> str:
    """What a parameter is called now, to follow its old name in a sentence; empty: it was never one."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        before, rest = ".".join(words[:count]), "".join(f".{word}" for word in words[count:])
        if before in MOVED:
            return f"{MOVED[before]}{rest} now"
        if before in OF_ENTRIES:
            now = OF_ENTRIES[before]
            return now if before == "glue.tasks" else f"{now}{rest} of each entry of kind glue now"
    return ""
