"""The plan: which stages a run has, what each reads and writes, and the checks that a stage makes before its work."""
