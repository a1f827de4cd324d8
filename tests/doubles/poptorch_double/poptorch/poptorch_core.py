"""Stands where PopTorch's native module is: what was compiled, and what functions called in `forward` need to know."""

RECORD = {"executables": []}


class _State:
    """`program` is the compile pass (program.Program), only during it; `losses` are those that were marked."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.running = self.inside_block = False
        self.program = None
        self.losses = []


STATE = _State()


def getRecord():
    return RECORD
