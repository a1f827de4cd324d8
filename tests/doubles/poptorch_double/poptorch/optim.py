"""Optimizers that run on the device: their constructors say which attributes can change after compilation."""

import weakref

import torch

FLOATS = (torch.float16, torch.float32)
INF = float("inf")
_TYPES = {
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}


class VariableAttributes:
    """Which attributes can change once the model is compiled; the others are constants of the executable."""

    def __init__(self, variable_attributes, allowed_attributes):
        self._variable, self._allowed = set(variable_attributes), allowed_attributes

    def isConstant(self, attr):
        return attr not in self._variable

    def markAsConstant(self, attr):
        assert attr in self._allowed, f"no attribute {attr}: {self._allowed}"
        self._variable.discard(attr)


class Optimizer:
    """What the device's optimizers add to torch's: state that lives on the device, and arguments of their own."""

    on_device = {"loss_scaling": 1.0}
    """Argument -> default; the others are torch's."""

    def __init__(self, params, **given):
        self._device_state = {"ipu_state": None, "ipu_param": None}
        self._executor = None
        self._host_is_old = self._device_is_old = False
        super().__init__(params, **{name: value for name, value in given.items() if name not in self.on_device})
        for name, default in self.on_device.items():
            value = given.get(name, default)
            if name.endswith("accum_type"):
                assert value in FLOATS, f"{name} is torch.float16 or torch.float32, found {value}"
            setattr(self, name, value)
        self.variable_attrs = VariableAttributes(["params", *given], [*self.defaults, "loss_scaling"])

    def _belong_to(self, executor):
        self._executor = weakref.ref(executor)

    def state_dict(self):
        """torch's, with `ipu_state` and `ipu_param`, which are read from the device when they changed there."""
        executor = self._executor and self._executor()
        if self._host_is_old and executor is not None:
            self._device_state = executor._compiled().read_optimizer()
            self._host_is_old = False
        return {**self._device_state, **torch.optim.Optimizer.state_dict(self)}

    def load_state_dict(self, state):
        """Goes to the device before the next execution."""
        torch.optim.Optimizer.load_state_dict(self, state)
        self._device_state = {key: state[key] for key in ("ipu_state", "ipu_param")}
        self._device_is_old, self._host_is_old = True, False


class SGD(Optimizer, torch.optim.SGD):
    kind = "SGD2"
    on_device = {
        "loss_scaling": 1.0,
        "use_combined_accum": False,
        "max_grad_norm": INF,
        "accum_type": torch.float32,
        "velocity_accum_type": torch.float32,
    }


class Adam(Optimizer, torch.optim.Adam):
    kind = "ADAM"
    on_device = {"loss_scaling": 1.0, **_TYPES, "max_grad_norm": INF}


class AdamW(Optimizer, torch.optim.AdamW):
    kind = "ADAMW"
    on_device = {"loss_scaling": 1.0, "bias_correction": True, **_TYPES, "max_grad_norm": INF}


class _Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, max_weight_norm=65500.0):
        defaults = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm})


class LAMB(Optimizer, _Lamb):
    """Adam's direction scaled by the trust ratio of each tensor (arXiv 1904.00962)."""

    kind = "LAMB"
    on_device = {"loss_scaling": 1.0, "bias_correction": True, **_TYPES}
