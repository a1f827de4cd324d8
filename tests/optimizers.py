"""An optimizer for tests, which state of it only what they are about."""

from ipu_model.jobs.job import OptimizerConfig

REST = {
    "weight_decay": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-6,
    "bias_correction": True,
    "max_grad_norm": None,
    "loss_scaling": 1.0,
    "first_moment_precision": "auto",
}


def optimizer_config(name="adamw", learning_rate=1e-3, **changes):
    return OptimizerConfig(name, learning_rate, **{**REST, **changes})
