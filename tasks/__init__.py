"""The stages: files in, files out. Each module is one stage of dvc.yaml or a part several stages share."""

import os

# Before pyarrow is imported anywhere. Its own allocator takes a gigabyte of address space at once, which no bound on
# memory (tasks/stage/memory.py) could tell from what a damaged file asks for.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
