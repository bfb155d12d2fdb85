"""Metrics as sums that can be added over micro-batches and ranks before they are divided.

`Sums` maps a key to a float64 scalar tensor. Which keys are present depends on settings alone, never on data, so every
rank holds the same ones. Keys that end in `_max` are combined by maximum, all others by addition.
"""

import torch

Sums = dict[str, torch.Tensor]


def is_maximum(key: str) -> bool:
    """Whether values under this key are combined by maximum instead of addition."""
    return key.endswith("_max")


def add_sums(first: Sums, second: Sums) -> Sums:
    """Combine two parts of a batch; a key that only one of them has is kept as it is."""
    total = first | second
    for key in first.keys() & second.keys():
        total[key] = torch.maximum(first[key], second[key]) if is_maximum(key) else first[key] + second[key]
    return total


def quotients(sums: Sums, fractions: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Metric values {name: sums[numerator] / sums[denominator]}; those not summed or with denominator 0 are absent."""
    return {
        name: float(sums[numerator] / sums[denominator])
        for name, (numerator, denominator) in fractions.items()
        if numerator in sums and float(sums[denominator]) > 0
    }
