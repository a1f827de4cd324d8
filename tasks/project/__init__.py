"""How a stage runs, never what it makes: parameters, paths, errors, atomic files, limits. No stage depends on it."""
