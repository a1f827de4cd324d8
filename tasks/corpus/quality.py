"""Rules of the section corpus.quality, which remove single documents.

Language identification is py3langid's, with the model in its package. The other rules are those of Gopher (Rae et al.
2021, https://arxiv.org/abs/2112.11446, table A1) as datatrove implements them. Both are in the extra `quality`. Whether
a document is removed depends only on its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tasks.corpus.documents import Document
from tasks.params.sections import QualityParams
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import InputError, require_packages

EXTRA = "quality"
LANGUAGE_CHARACTERS = 2000
"""Characters that decide on a document's language; more take longer and hardly change the answer."""
QUOTED_CHARACTERS = 240
"""Characters of a removed document that the page shows."""
_WORDS = re.compile(r"\w+|[^\w\s]")
"""Words and punctuation marks: datatrove's own splitters need spaCy and a second per MB and rule."""
_PREFIX = "gopher_"
_GOPHER_QUALITY = (
    "min_avg_word_length",
    "max_avg_word_length",
    "max_symbol_word_ratio",
    "max_bullet_lines_ratio",
    "max_ellipsis_lines_ratio",
    "max_non_alpha_words_ratio",
)
"""Limits of GopherQualityFilter that corpus.quality.gopher_quality turns on."""


def remove_documents(
    documents: Iterable[Document], params: QualityParams, reading: Interpretation
) -> Iterator[Document]:
    """Yield the documents that no rule removes; count the others by rule, with an example."""
    find_rule = make_rules(params)
    for document in documents:
        if rule := find_rule(document.text):
            reading.add_example(f"removed, {rule}", quote(document))
        else:
            yield document


def quote(document: Document) -> str:
    """Return the id of a document and the beginning of its text."""
    text = " ".join(document.text[: 2 * QUOTED_CHARACTERS].split())
    return f'{document.document_id}: "{text[:QUOTED_CHARACTERS]}{" …" if len(text) > QUOTED_CHARACTERS else ""}"'


def make_rules(params: QualityParams) -> Callable[[str], str]:
    """Return a function that names the first rule which removes a text; "" if none does.

    Raises:
        InputError: a package is missing, or a language is not known.
    """
    rules = [
        *([_make_language_rule(params)] if params.languages else []),
        *([_make_gopher_rules(params)] if params.counts_words or params.gopher_repetition else []),
    ]
    return lambda text: next(filter(None, (rule(text) for rule in rules)), "")


def _make_language_rule(params: QualityParams) -> Callable[[str], str]:
    require_packages(EXTRA, ("py3langid",), "corpus.quality.languages")
    from py3langid import langid

    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    known = sorted(identifier.nb_classes)
    if unknown := sorted(set(params.languages) - set(known)):
        raise InputError(f"corpus.quality.languages contains {', '.join(unknown)}. Known languages: {', '.join(known)}")

    def find_rule(text: str) -> str:
        language, probability = identifier.classify(text[:LANGUAGE_CHARACTERS])
        if language not in params.languages:
            return f"language: {language}"
        return "" if probability >= params.min_language_probability else "language: uncertain"

    return find_rule


def _make_gopher_rules(params: QualityParams) -> Callable[[str], str]:
    key = "gopher_repetition" if params.gopher_repetition else "gopher_quality"
    require_packages(EXTRA, ("datatrove",), f"corpus.quality.{key}")
    from datatrove.data import Document as Record
    from datatrove.pipeline import filters as library

    splitter = _make_splitter()
    limits: dict[str, Any] = {} if params.gopher_quality else dict.fromkeys(_GOPHER_QUALITY)
    limits |= {"min_doc_words": params.min_words or 1, "max_doc_words": params.max_words, "language": splitter}
    limits |= {"stop_words": params.stop_words, "min_stop_words": 2 if params.stop_words else None}
    filters = {}
    if params.counts_words:
        filters["quality"] = library.GopherQualityFilter(**limits)
    if params.gopher_repetition:
        filters["repetition"] = library.GopherRepetitionFilter(language=splitter)

    def find_rule(text: str) -> str:
        for name, quality_filter in filters.items():
            if (decision := quality_filter.filter(Record(text, ""))) is not True:
                return f"{name}: {decision[1].removeprefix(_PREFIX).replace('_', ' ')}"
        return ""

    return find_rule


def _make_splitter() -> Any:
    """Return datatrove's interface to a splitter of words."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    methods = {"word_tokenize": lambda self, text: _WORDS.findall(text), "sent_tokenize": None, "span_tokenize": None}
    return type("WordSplitter", (WordTokenizer,), methods)()
