"""Model folders of sentence-transformers: their pooling, and the length of their texts."""

from pathlib import Path

from ipu_model.core.files import find_object, read_json
from tasks.stage.errors import InputError

KEPT = ("Transformer", "Pooling", "Normalize")
POOLINGS = {
    **{"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"},
    **{"mean": "mean", "cls": "first"},
}
"""Key in 1_Pooling/config.json, or value of its key pooling_mode -> value of the parameter `pooling`."""


def read_modules(folder: Path) -> dict[str, object]:
    """Return `pooling` and `rows.row_length` of this model, as settings of an entry; empty if it is of another library.

    Raises:
        InputError: it has modules that would be lost.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    try:
        modules = {str(module["type"]).rpartition(".")[2]: folder / str(module["path"]) for module in read_json(path)}
        pooling = read_json(modules["Pooling"] / "config.json") if "Pooling" in modules else {}
        modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
        modes += [str(pooling["pooling_mode"])] if "pooling_mode" in pooling else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} or a file that it names is damaged ({error!r}). Download the model again") from None
    others = [name for name in modules if name not in KEPT]
    if others or len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(
            f"{path} has {', '.join([*others, *modes]) or 'no pooling'}; only mean or first-token pooling, and "
            "Normalize, are kept. Remove modules.json from a copy of the folder to start from its encoder alone"
        )
    longest = (find_object(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return {"pooling": POOLINGS[modes[0]], **({"rows.row_length": longest} if isinstance(longest, int) else {})}
