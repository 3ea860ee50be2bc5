"""Exact Wasserstein-1 distances between finite samples, each with a certificate from both sides.

Equal uniform weights are an assignment problem (SciPy), other weights a linear program (POT's network simplex), the
real line has a closed form. A transport plan bounds W1 from above, a pair of potentials from below; `certify` turns any
plan and any potential, however poor, into a valid sandwich.
"""

from shiftbound.transport.certificates import (
    Certificate,
    IntegerCertificate,
    certify,
    integer_certificate,
    min_transform,
    round_plan,
    sinkhorn,
    w1_certified,
)
from shiftbound.transport.exact import cityblock, euclidean, w1_exact, w1_line
from shiftbound.transport.samples import compare, interval, interval_from_cost, noise_floor

__all__ = [
    "Certificate",
    "IntegerCertificate",
    "certify",
    "cityblock",
    "compare",
    "euclidean",
    "integer_certificate",
    "interval",
    "interval_from_cost",
    "min_transform",
    "noise_floor",
    "round_plan",
    "sinkhorn",
    "w1_certified",
    "w1_exact",
    "w1_line",
]
