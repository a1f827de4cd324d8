"""One job from its checks to its result: the loop, checkpoints, evaluation, prediction."""
