"""The slope of a cost curve is the exponent of the power of the work that its cost follows."""

from __future__ import annotations

import pytest

from tests.bench.bench_curves import SLOPE_MAX, Point, slope


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_slope_is_the_exponent(exponent: float) -> None:
    points = [Point(work, 0.003 * work**exponent) for work in (1, 10, 500, 20_000)]
    assert slope(points) == pytest.approx(exponent)


def test_a_constant_part_makes_the_slope_smaller_and_a_quadratic_one_is_a_defect() -> None:
    steps = (10, 100, 1_000, 10_000)
    assert slope([Point(work, 5 + 0.001 * work) for work in steps]) < 1
    assert slope([Point(work, 0.001 * work + 0.001 * work**2) for work in steps]) > SLOPE_MAX
