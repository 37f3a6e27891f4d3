"""Losses and optimizers as the user writes them."""

from tests.faults.fault import Fault

LOSSES = "tests/frontend/test_losses.py"
OPTIMIZERS = "tests/test_optimizers.py"

FAULTS = (
    Fault(
        "class-weights-not-in-the-mean",
        "gfcompile/frontend/losses.py",
        "importance = importance * weight.gather(0, index.flatten()).view(index.shape)",
        "importance = importance * (index >= 0)",
        "a cross entropy with class weights divides by the number of samples",
        (LOSSES,),
    ),
    Fault(
        "ignored-labels-count",
        "gfcompile/frontend/losses.py",
        "counts = target != ignore_index",
        "counts = target != -100",
        "labels that are ignored by another number count in the mean",
        (LOSSES,),
    ),
    Fault(
        "padding-in-the-mean",
        "gfcompile/frontend/losses.py",
        "return (per_sample * weights).sum() / weights.sum()",
        "return (per_sample * weights).sum() / weights.numel()",
        "the loss of a short batch is divided by the whole batch",
        (LOSSES,),
    ),
    Fault(
        "smoothing-left-out",
        "gfcompile/frontend/losses.py",
        "label_smoothing=label_smoothing\n",
        "label_smoothing=0.0 * label_smoothing\n",
        "label smoothing is read and not used",
        (LOSSES,),
    ),
    Fault(
        "factor-upside-down",
        "gfcompile/optimizers.py",
        "lr / rate}",
        "rate / lr}",
        "the learning rate of a torch.optim group becomes its inverse",
        (OPTIMIZERS,),
    ),
    Fault(
        "eager-adam-decays-twice",
        "gfcompile/passes/append_optimizer.py",
        "decoupled=settings.is_decoupled,",
        "decoupled=False,",
        "AdamW decays through the gradient, as Adam does",
        ("tests/passes/test_append_optimizer.py",),
    ),
    Fault(
        "step-count-from-zero",
        "gfcompile/passes/append_optimizer.py",
        "self.count = emit(graph, aten.add.Tensor, before, 1.0)",
        "self.count = emit(graph, aten.add.Tensor, before, 2.0)",
        "Adam's bias correction is ahead of the steps that were made",
        ("tests/passes/test_append_optimizer.py",),
    ),
)
