"""PopTorch optimizers for a job, and their state as named tensors.

PopTorch does not run an optimizer's Python code: it reads the object's attributes and compiles PopART's own update. So
this module sets all of these attributes. Only the learning rate and the loss scaling stay variable; every other number
is compiled as a constant, which saves a stream each and lets PopART fold it. After set_learning_rate, pass the
optimizer to `executor.setOptimizer`: without that call the device continues with the old value.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Tuple

import torch
from torch import Tensor, nn

from ipu_model.core.errors import CheckpointError
from ipu_model.ipu.planning import check_optimizer, is_half
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.modeling import is_exempt

VARIABLE = ("lr", "loss_scaling")
"""Attributes that may change after compiling."""

NO_TRUST_RATIO = 0.0
"""max_weight_norm of a group: PopART uses the ratio 1 where the weight norm is limited to 0."""

STATE, PARAMETERS = "ipu_state", "ipu_param"
"""Parts of PopTorch's optimizer state: moments and step counts, and the scalars of the compiled update."""


def make_ipu_optimizer(
    poptorch: Any, config: OptimizerConfig, named_parameters: Iterable[Tuple[str, nn.Parameter]], half: bool
) -> Any:
    """Create the optimizer of a job on IPU, with the same updates as ipu_model.optim.optimizers.make_optimizer.

    Biases and LayerNorm get no weight decay and, in LAMB, no trust ratio. The decay of adam and sgd is torch's L2
    penalty; that of adamw and lamb is decoupled. LAMB limits the weight norm in the trust ratio to 65500, PopTorch's
    default; no matrix of a BERT comes near it. sgd does not use betas and bias_correction: it has no such moments.

    Args:
        named_parameters: Parameters of the model for poptorch.trainingModel, after it was split into blocks. Names may
            have a prefix. Parameters without a gradient are left out.
        half: Weights are fp16, which `auto` precisions follow.

    Raises:
        ConfigError: the IPU would ignore a setting or apply it differently from torch.
    """
    check_optimizer(config)
    groups = _groups(named_parameters, lamb=config.name == "lamb")
    optim = poptorch.optim
    kinds = {"adamw": optim.AdamW, "adam": optim.Adam, "lamb": optim.LAMB, "sgd": optim.SGD}
    optimizer = kinds[config.name](groups, **_arguments(config, half))
    # PopTorch treats every argument of a constructor as variable.
    for name in optimizer.defaults:
        if name not in VARIABLE:
            optimizer.variable_attrs.markAsConstant(name)
    # torch's load_state_dict adds this to the defaults of LAMB, and PopTorch warns about attributes that are new since
    # it compiled.
    optimizer.defaults.setdefault("differentiable", False)
    return optimizer


def _arguments(config: OptimizerConfig, half: bool) -> Dict[str, Any]:
    """Return the arguments of the constructor, without the parameters."""
    arguments: Dict[str, Any] = {
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
        "loss_scaling": config.loss_scaling,
        "accum_type": _dtype(config.accumulator_precision, half),
    }
    first = _dtype(config.first_moment_precision, half)
    if config.max_grad_norm is not None:
        arguments["max_grad_norm"] = config.max_grad_norm
    if config.name == "sgd":
        arguments.update(momentum=config.momentum, velocity_accum_type=first, use_combined_accum=False)
        return arguments
    arguments.update(
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        first_order_momentum_accum_type=first,
        second_order_momentum_accum_type=torch.float32,  # squares of gradients leave fp16's range
    )
    if config.name in ("adamw", "lamb"):
        arguments["bias_correction"] = config.bias_correction
    return arguments


def compiled_values(config: OptimizerConfig, half: bool) -> Dict[str, Any]:
    """Return the values of the optimizer that are compiled into the program, as plain data: all but variable ones."""
    values = {name: value for name, value in _arguments(config, half).items() if name not in VARIABLE}
    plain = {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}
    return {"name": config.name, **{n: str(x) if isinstance(x, torch.dtype) else x for n, x in plain.items()}}


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the rate of every group; `executor.setOptimizer(optimizer)` then sends it to the device."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: Any) -> Dict[str, Tensor]:
    """Return PopTorch's state as tensors 'ipu_state/<name>' and 'ipu_param/<name>'; empty before the first compile.

    A trained state is read from the device, which must be attached, or must have been detached by PopTorch.
    """
    state = optimizer.state_dict()  # an executor replaces this method with one that reads the device
    tensors: Dict[str, Tensor] = {}
    for part in (STATE, PARAMETERS):
        for name, value in (state.get(part) or {}).items():
            tensors[f"{part}/{name}"] = torch.as_tensor(value).detach().clone().contiguous()
    return tensors


def load_optimizer_tensors(poptorch: Any, optimizer: Any, tensors: Dict[str, Tensor]) -> None:
    """Restore the result of optimizer_tensors, before or after the first compile.

    PopTorch uploads it when it next attaches or runs. The state does not decide the learning rate and loss scaling: the
    device takes them from the optimizer's attributes (PopART's Devicex resets its scalars from the optimizer whenever
    it loads the engine). Set the attributes as well.

    Raises:
        CheckpointError: the state is not that of an IPU optimizer.
    """
    if not isinstance(optimizer, poptorch.optim.Optimizer):
        raise CheckpointError(
            f"{type(optimizer).__name__} is not an optimizer of PopTorch: only those have state on an IPU"
        )
    parts: Dict[str, Dict[str, Tensor]] = {STATE: {}, PARAMETERS: {}}
    for full_name, value in tensors.items():
        part, _, name = full_name.partition("/")
        if part not in parts:
            raise CheckpointError(
                f"the optimizer state has {full_name}, which is not of an IPU (ipu_state/..., ipu_param/...): "
                "continue with the runtime that wrote the checkpoint, or start from its weights"
            )
        parts[part][name] = value.detach().contiguous().clone()  # PopTorch copies from the data pointer
    if tensors:
        # Keep the optimizer's own groups: learning rate, decay and so on come from this run's config.
        optimizer.load_state_dict({**torch.optim.Optimizer.state_dict(optimizer), **parts})


def _groups(named_parameters: Iterable[Tuple[str, nn.Parameter]], lamb: bool) -> List[Dict[str, Any]]:
    trained = [(name, p) for name, p in named_parameters if p.requires_grad]
    decayed: Dict[str, Any] = {"params": [p for _, p in trained if not is_exempt(p)]}
    exempt: Dict[str, Any] = {"params": [p for _, p in trained if is_exempt(p)], "weight_decay": 0.0}
    if lamb:
        exempt["max_weight_norm"] = NO_TRUST_RATIO
    # The dispatcher of PopTorch's op optimizer_group needs at least one tensor to choose a device.
    return [group for group in (decayed, exempt) if group["params"]]


def _dtype(precision: str, half: bool) -> torch.dtype:
    return torch.float16 if is_half(precision, half) else torch.float32
