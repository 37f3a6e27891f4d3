"""What PyTorch holds in memory, measured: the peak of its CPU allocator, and what a graph keeps for backward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes that `run` holds at one time through PyTorch's allocator, oneDNN's workspaces included.

    From the profiler's log of every allocation and release, in order. A block from before `run` counts neither while
    it is held nor when it is released. The log has the calling thread's events only: use `torch.set_num_threads(1)`.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # negative for a release
        peak = max(peak, held)
    return peak


def kept_bytes(forward: Callable[[], Tensor], outside: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages that `forward`'s graph saves for its backward pass, without those of `outside`."""
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    left_out = {tensor.untyped_storage().data_ptr() for tensor in outside}
    total = sum(size for address, size in saved.items() if address not in left_out)
    del result  # not before: while the graph lives, no address is given out twice
    return total
