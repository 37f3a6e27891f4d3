"""gfcompile: compile a CNN's training step, with gradient filtering, for small devices."""

from typing import TYPE_CHECKING, Any

from gfcompile.version import __version__

if TYPE_CHECKING:
    from gfcompile.api import CompiledStep, build, compile, find_plan, load, quality
    from gfcompile.optimizers import SGD, Adam, AdamW, RMSprop

__all__ = [
    "SGD", "Adam", "AdamW", "CompiledStep", "RMSprop",
    "__version__", "build", "compile", "find_plan", "load", "quality",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import torch and tvm only when the compiler is used: `gfcompile --help` should be instant."""
    if name in ("SGD", "Adam", "AdamW", "RMSprop"):
        from gfcompile import optimizers

        return getattr(optimizers, name)
    if name in __all__:
        from gfcompile import api

        return getattr(api, name)
    raise AttributeError(f"module 'gfcompile' has no attribute {name!r}")
