"""A verdict to show."""

CHECK = {
    "name": "texts_present",
    "column": "text",
    "ok": True,
    "found": "all 1,200 documents pass",
    "required": "no text is null or empty",
    "failed": 0,
    "of": 1200,
    "examples": [],
    "advice": "check corpus.path",
}
VERDICT = {
    "data": "corpus",
    "valid": True,
    "rows": 1200,
    "record": "document",
    "checks": [CHECK],
    "not_checked": [],
    "statistics": {
        "numbers": [{"name": "characters", "value": 123456}],
        "histograms": [
            {
                "title": "Length of documents",
                "unit": "characters",
                "edges": [10, 20, 40],
                "counts": [3, 1000],
                "open_end": True,
                "widening": True,
            }
        ],
    },
}
