"""What the evidence compares, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log10

SHARE = 0.02  # of the network's convolution weights that a sparse step updates, at most
COMPARED_LAYERS = 4  # where every method is compared; the other depths are for the picture
LONGER = 4  # times as many epochs


@dataclass(frozen=True)
class Method:
    """How gradients of the trained convolutions are computed. `strategy` chooses the channels of a sparse update.

    `compiled_as` names the method whose step and learning rate it takes, if not its own.
    """

    label: str
    r: int | None = None
    strategy: str | None = None
    trains_convolutions: bool = True
    epochs_times: int = 1
    compiled_as: str | None = None


METHODS = {
    "classifier": Method("classifier only", trains_convolutions=False),
    "exact": Method("exact"),
    "r2": Method("r=2", r=2),
    "r4": Method("r=4", r=4),
    "r7": Method("r=7", r=7),
    "fixed": Method("sparse, fixed", strategy="fixed"),
    "dynamic": Method("sparse, dynamic", strategy="step"),
    "r2_dynamic": Method("r=2 and sparse, dynamic", r=2, strategy="step"),
    "fixed_long": Method(
        f"sparse, fixed, {LONGER}x epochs", strategy="fixed", epochs_times=LONGER, compiled_as="fixed"
    ),
    "dynamic_long": Method(
        f"sparse, dynamic, {LONGER}x epochs", strategy="step", epochs_times=LONGER, compiled_as="dynamic"
    ),
}


@dataclass(frozen=True)
class Settings:
    """Images are of half A for pretraining, of half B for the rest; `test` None takes all of half B's test images."""

    networks: tuple[str, ...] = ("resnet", "mobilenet_v2")
    seeds: tuple[int, ...] = (1, 2, 3)
    first_seed: int = 0  # of the pretraining, the classifier and the choice of rates
    methods: tuple[str, ...] = tuple(METHODS)
    depths: tuple[int, ...] = (2, COMPARED_LAYERS, 8)  # the last N convolutions
    other_depths_methods: tuple[str, ...] = ("exact", "r2", "r4")
    batch: int = 32
    pretrain_images: int = 12_000
    pretrain_epochs: int = 2
    pretrain_rate: float = 0.1
    classifier_rate: float = 0.3  # while it is trained alone, before all methods
    images: int = 6_000
    epochs: int = 3
    momentum: float = 0.9
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    further_rates: int = 3  # at most, beyond an end of the list while the best rate stands there
    validation: int = 2_500
    test: int | None = None

    def epochs_of(self, method: str) -> int:
        return self.epochs * METHODS[method].epochs_times


def rate_beyond(tried: Mapping[float, float]) -> float | None:
    """The next half decade where the best rate (of equal ones the smallest) is the least or the largest tried."""
    ordered = sorted(tried)
    best = max(ordered, key=lambda rate: tried[rate])
    if best not in (ordered[0], ordered[-1]):
        return None
    half_decades = round(2 * log10(best)) + (1 if best == ordered[-1] else -1)
    return float(f"{10 ** (half_decades / 2):.0e}")


QUICK = Settings(
    networks=("resnet",),
    seeds=(1, 2),
    depths=(COMPARED_LAYERS,),
    pretrain_images=64,
    pretrain_epochs=1,
    images=64,
    epochs=1,
    rates=(0.01, 0.03),
    further_rates=1,
    validation=32,
    test=64,
)


@dataclass(frozen=True)
class Plan:
    """What is trained from several seeds."""

    network: str
    method: str
    layers: int

    @property
    def key(self) -> str:
        depth = f", last {self.layers}" if METHODS[self.method].trains_convolutions else ""
        return f"{self.network}{depth}, {METHODS[self.method].label}"

    def run_key(self, seed: int) -> str:
        return f"{self.key}, seed {seed}"

    @property
    def compiled(self) -> Plan:
        """Whose step it runs."""
        return replace(self, method=METHODS[self.method].compiled_as or self.method)

    @property
    def rated(self) -> Plan:
        """Whose learning rate it takes: that of its step where all methods are compared."""
        return replace(self.compiled, layers=COMPARED_LAYERS)


def plans_of(settings: Settings) -> list[Plan]:
    return [
        Plan(network, method, layers)
        for network in settings.networks
        for layers in settings.depths
        for method in settings.methods
        if layers == COMPARED_LAYERS or method in settings.other_depths_methods
    ]


def compared_plans(settings: Settings) -> list[Plan]:
    return [plan for plan in plans_of(settings) if plan.layers == COMPARED_LAYERS]


def compiled_only(plans: Sequence[Plan]) -> list[Plan]:
    """Without those that run another one's step."""
    return [plan for plan in plans if plan.compiled == plan]


def runs_of(settings: Settings) -> dict[str, tuple[Plan, int]]:
    """By key, in the order of running: first, seed by seed, what is compared; then the depths of the picture."""
    deeper = [plan for plan in plans_of(settings) if plan.layers != COMPARED_LAYERS]
    return {
        plan.run_key(seed): (plan, seed)
        for plans in (compared_plans(settings), deeper)
        for seed in settings.seeds
        for plan in plans
    }
