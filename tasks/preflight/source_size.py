"""How much text a corpus will have, before it is read.

    python -m tasks.preflight.source_size

prints the MB of the corpus of params.yaml, or nothing where nobody says.
"""

from __future__ import annotations

from pathlib import Path

from tasks.inputs import world
from tasks.project.main import run_main
from tasks.project.param_inputs import CorpusParams
from tasks.project.process import takes_no_words

MB = 10**6
SAMPLE_DOCUMENTS = 2000
"""Documents of the demo: their mean length is known within a percent."""


def expected_mb(params: CorpusParams) -> float | None:
    """MB (10**6 bytes of UTF-8) of text in the corpus that is asked for; None where nobody says (hub).

    Of .jsonl and .csv this is the size of the files, whatever else stands in them.

    Raises:
        InputError: corpus.path cannot be read.
    """
    if params.source == "demo":
        number = min(params.demo_documents, SAMPLE_DOCUMENTS)
        made = world.documents(params.seed, "corpus", number)
        return params.demo_documents * sum(len(document.text.encode()) for document in made) / number / MB
    if params.source == "files":
        from tasks.inputs.documents import usable_files
        from tasks.reading.text_files import Reading

        return sum(_bytes_of(file, params.text_column) for file in usable_files(Path(params.path), Reading())) / MB
    return 0.0 if params.source == "none" else None


def _bytes_of(file: Path, text_column: str) -> int:
    if file.suffix.lower() != ".parquet":
        return file.stat().st_size
    from tasks.reading.parquet import sizes_of_groups

    return sum(size.bytes for size in sizes_of_groups(file, text_column, "corpus"))


def main() -> None:
    takes_no_words("Print the MB of text of the corpus of params.yaml, or nothing where nobody says.")
    from tasks.project.params import load_sections

    if (megabytes := expected_mb(load_sections("corpus").corpus)) is not None:
        print(megabytes)


if __name__ == "__main__":
    run_main(main)
