"""Seeded damage to files from outside, for tests of their readers. Python 3.8, standard library only."""

import copy
import json
import random

ODD = (None, True, [], {}, "", -1, 0, 2**40, 1e300, "../../../etc/passwd", "x" * 1000, [[1]], {"a": {}}, ["a", 1])
DEEP = ("[" * 100_000, '{"a":' * 100_000)
RAW = (b"", b"\x00", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', b"{}", b'{"a": NaN}', b"[1" + b"0" * 5000 + b"]")


def damaged_bytes(good, count):
    """(what was done, content): seeds 0.. flip, cut, insert and repeat bytes."""
    for number, raw in enumerate(RAW):
        yield f"raw {number}", raw
    for number, deep in enumerate(DEEP):
        yield f"deep {number}", deep.encode()
    for seed in range(count):
        chance = random.Random(seed)
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data) + 1)
            how = chance.randrange(4)
            if how == 0 and place < len(data):
                data[place] ^= 1 << chance.randrange(8)
            elif how == 1:
                del data[place:]
            elif how == 2:
                data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
            else:
                data[place:place] = data[place : place + 40]
        yield f"bytes, seed {seed}", bytes(data)


def damaged_json(good, count):
    """The same, and then one or two values of the document replaced by odd ones or taken away."""
    yield from damaged_bytes(json.dumps(good).encode(), count)
    for seed in range(count):
        chance = random.Random(seed)
        values = copy.deepcopy(good)
        for _ in range(chance.randint(1, 2)):
            holder, key = chance.choice(list(_places(values)) or [([None], 0)])
            if chance.randrange(5) == 0:
                del holder[key]
            else:
                holder[key] = chance.choice(ODD)
        yield f"values, seed {seed}", json.dumps(values).encode()


def require_clean(read, what, ours):
    """`read` must return, or raise an error of the tree `ours` with some text."""
    try:
        read()
    except ours as error:
        if not str(error):
            raise AssertionError(f"{what}: an error without a word") from error
    except Exception as error:  # noqa: BLE001 (the test is about all of them)
        raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:200]}") from error


def _places(values):
    keys = []
    if isinstance(values, dict):
        keys = list(values)
    elif isinstance(values, list):
        keys = list(range(len(values)))
    for key in keys:
        yield values, key
        yield from _places(values[key])
