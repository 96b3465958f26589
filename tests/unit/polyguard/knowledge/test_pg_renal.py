"""Kidney formulas against values that were computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyguard.knowledge.renal import ckd_epi_2021, cockcroft_gault

AGES, CREATININES = st.floats(18, 100), st.floats(0.3, 10)


@pytest.mark.parametrize(
    ("age", "weight", "scr", "female", "value"),
    [
        (80, 60, 1.2, True, 35.4),  # (60 x 60) / 86.4 x 0.85
        (80, 60, 1.2, False, 41.7),
        (40, 72, 1.0, False, 100.0),
    ],
)
def test_cockcroft_gault(age, weight, scr, female, value):
    assert cockcroft_gault(age, weight, scr, female) == pytest.approx(value, abs=0.05)


@pytest.mark.parametrize(
    ("age", "scr", "female", "value"),
    [
        (70, 1.0, True, 60.6),  # 142 x (1/0.7)^-1.2 x 0.9938^70 x 1.012
        (50, 0.9, False, 104.0),  # 142 x 0.9938^50
        (60, 2.0, False, 37.5),  # 142 x (2/0.9)^-1.2 x 0.9938^60
        (30, 0.6, True, 123.8),  # 142 x (0.6/0.7)^-0.241 x 0.9938^30 x 1.012
    ],
)
def test_ckd_epi_2021(age, scr, female, value):
    assert ckd_epi_2021(age, scr, female) == pytest.approx(value, abs=0.15)


@given(AGES, CREATININES, st.booleans())
def test_kidneys_get_worse_with_age_and_with_creatinine(age, scr, female):
    assert 0 < ckd_epi_2021(age + 1, scr, female) < ckd_epi_2021(age, scr, female) < 500
    assert ckd_epi_2021(age, scr * 1.1, female) < ckd_epi_2021(age, scr, female)
    assert 0 < cockcroft_gault(age + 1, 70, scr, female) < cockcroft_gault(age, 70, scr, female)
    assert cockcroft_gault(age, 70, scr, True) == pytest.approx(0.85 * cockcroft_gault(age, 70, scr, False))
