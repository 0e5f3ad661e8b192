"""A measurement made up for the tests of advice."""

from __future__ import annotations

import fewrounds as fr


def measurement(**changes) -> fr.Measurement:
    """Ten workers with 500 samples: constants that are all different."""
    constants = {
        "L": 20.0, "L_ahead": 10.0, "L_sample": 50.0, "zeta": 2.0, "zeta_to_mean": 1.0, "zeta1": 3.0, "sigma2": 90.0, "sigma2_mean": 80.0,
        "gradient_norm2": 7.0,
    }  # fmt: skip
    sizes, L_workers = changes.pop("sizes", (500.0,) * 10), changes.pop("L_workers", (20.0,) * 9 + (25.0,))
    estimates = {name: fr.Estimate(value) for name, value in {**constants, **changes}.items()}
    return fr.Measurement(loss=3.0, sizes=sizes, dim=100, L_workers=tuple(map(fr.Estimate, L_workers)), **estimates)
