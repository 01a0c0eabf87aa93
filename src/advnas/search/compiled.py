"""A warning about parents that torch.compile has been given whole."""

import warnings

from torch import nn

from advnas.choice import Choice


def warn_if_compiled(model: nn.Module) -> None:
    """Warn where a compiled module has a Choice inside: every draw is another graph, compiled in every step."""
    for path, module in model.named_modules():
        if _is_compiled(module) and any(isinstance(part, Choice) for part in module.modules()):
            warnings.warn(
                f"{path or 'The model'} was given to torch.compile and has a Choice inside. Every architecture "
                "that is drawn is a graph of its own, so nearly every step compiles anew. Compile the candidates "
                "instead, Choice({'a': torch.compile(a), ...}), and the derived network at the end.",
                UserWarning,
                stacklevel=4,
            )
            return


def _is_compiled(module: nn.Module) -> bool:
    """By torch.compile(module), which wraps it, or module.compile(), which does not."""
    wrapped = type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None
