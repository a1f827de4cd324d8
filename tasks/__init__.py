"""The stages: files in, files out. Each module is one stage of dvc.yaml or a part several stages share."""

import gc
import os

# Before pyarrow is imported anywhere. Its own allocator takes a gigabyte of address space at once, which no bound on
# memory (tasks/stage/memory.py) could tell from what a damaged file asks for.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"

# Importing a stage's packages makes a hundred thousand objects that stay; Python's own 700 collects them over and over.
gc.set_threshold(20_000, 10, 10)
