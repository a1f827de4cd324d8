"""Try the regular expressions of a stranger's tokenizer: python -m tasks.vocabulary.try_patterns < PARTS

PARTS is JSON with the normalizer and the pre_tokenizer of a tokenizer.json. The caller sets a time limit.
"""

import itertools
import json
import resource
import sys
from collections.abc import Iterator

from tokenizers import Tokenizer

from tasks.plan.main import run_main
from tasks.stage.process import parse_no_arguments
from tasks.vocabulary.fast_tokenizer import LibraryErrors, find_patterns

MEMORY = 2 << 30
LETTERS = 12
"""Letters of the patterns that are combined."""
MODEL = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}


def make_texts(patterns: str) -> Iterator[str]:
    """Yield texts that repeat letters, alone and in pairs, and do not end with what a pattern may require there."""
    letters = list(dict.fromkeys([*(letter for letter in patterns if letter.isalnum()), *"a 1.\n"]))[:LETTERS]
    for first, second in itertools.product(letters, repeat=2):
        for times in (32, 2048):
            yield f"{(first + second) * times}! {''.join(letters)}"


def main() -> None:
    parse_no_arguments("Try the regular expressions of a tokenizer, from standard input.")
    parts = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with LibraryErrors("tokenizer.json"):
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": MODEL, **parts}))
    with LibraryErrors("a pattern", "takes too long for some texts"):
        for text in make_texts("".join(find_patterns(parts))):
            tokenizer.encode(text)


if __name__ == "__main__":
    run_main(main)
