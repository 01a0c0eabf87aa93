"""Trust: whether a module computes what torch's class of that name computes, and nothing else."""

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# f(w x) = w f(x) for w > 0: a gate in front of these is a gate behind them.
POSITIVELY_HOMOGENEOUS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
)

_CALL = nn.Module.__call__, nn.Module._call_impl
_FORWARD = {kind: kind.forward for kind in (*BATCH_NORMS, *POSITIVELY_HOMOGENEOUS)}  # before anybody patches one
_SEQUENCE = nn.Sequential.forward, nn.Sequential.__iter__


def is_torchs_own(module: nn.Module) -> bool:
    """Whether the class is one of torch's BatchNorms or scale-passing modules, and nobody has patched it."""
    kind = type(module)
    return kind in _FORWARD and kind.forward is _FORWARD[kind] and _is_called_plainly(kind)


def is_batch_norm(module: object) -> bool:
    """Whether this is torch's own BatchNorm, its scale a parameter or none: not parametrised, not pruned."""
    return (
        isinstance(module, _BatchNorm)
        and type(module) in BATCH_NORMS
        and is_torchs_own(module)
        and {"weight", "bias"} <= module._parameters.keys()
    )


def is_sequence(module: nn.Module) -> bool:
    """Whether a module runs its children one after the other; a subclass of nn.Sequential may."""
    if not isinstance(module, nn.Sequential):
        return False
    kind = type(module)
    return (kind.forward, kind.__iter__) == _SEQUENCE and _is_called_plainly(kind)


def _is_called_plainly(kind: type[nn.Module]) -> bool:
    return (kind.__call__, kind._call_impl) == _CALL


def is_unhooked(module: nn.Module) -> bool:
    """Whether calling a module runs its class's `forward` alone, just now.

    Not so with hooks, which may come at any time, with a `forward` of this one object, or a compiled call.
    """
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
    )


def no_global_hooks() -> bool:
    """Whether nobody hooks into every module, just now."""
    return not torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
