"""How sure a score is, whether two models differ, and how well probabilities are calibrated."""
