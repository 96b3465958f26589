"""Kidney function from what a chart holds. Numbers in, mL/min out; units are in the names."""

from __future__ import annotations


def cockcroft_gault(age: float, weight_kg: float, scr: float, female: bool) -> float:
    """Creatinine clearance in mL/min (Cockcroft and Gault 1976), serum creatinine in mg/dL, actual weight."""
    return (140 - age) * weight_kg / (72 * scr) * (0.85 if female else 1.0)


def ckd_epi_2021(age: float, scr: float, female: bool) -> float:
    """eGFR in mL/min/1.73 m2 (CKD-EPI 2021, creatinine, race-free), serum creatinine in mg/dL."""
    kappa, alpha = (0.7, -0.241) if female else (0.9, -0.302)
    ratio = scr / kappa
    value = 142 * min(ratio, 1.0) ** alpha * max(ratio, 1.0) ** -1.200 * 0.9938**age
    return float(value * 1.012 if female else value)
