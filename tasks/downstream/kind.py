"""The dictionary of kinds of downstream tasks, from which the stages take the parts that they need."""

from tasks.downstream.kind_parts import Kind
from tasks.downstream.ner.kind import Ner
from tasks.downstream.pairs.kind import Pairs
from tasks.downstream.squad.kind import Squad
from tasks.downstream.texts.kind import Classification, Glue
from tasks.params.entries import Entry

KINDS: dict[str, Kind] = {
    "classification": Classification(),
    "glue": Glue(),
    "ner": Ner(),
    "pairs": Pairs(),
    "squad": Squad(),
}


def kind_of(entry: Entry) -> Kind:
    """Return the kind of an entry."""
    return KINDS[entry.kind]
