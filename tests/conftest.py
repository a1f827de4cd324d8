"""Order of the tests. Read by Python 3.8 too (tests/ipu_model)."""


def pytest_collection_modifyitems(items):
    """Slow tests first, each file still in its own order: with two processes nobody then waits for the last one."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)
