"""Units of signals: how a number in one unit becomes one in another, worked out once when the schemas are loaded."""

from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

_EXACT = 2**53
"""Up to here every whole number is a double."""


class UnitError(ValueError):
    """A unit that is not known, or one that cannot become the other. The text is the end of a sentence."""


class Linear(NamedTuple):
    """``(x + shift) * times / by``. In this form the common conversions round once or not at all: 212 °F are 100 °C and
    3300 mV are 3.3 V, where a factor and an offset make 100.00000000000001 and 3.3000000000000003 of them. The
    product comes first: of a number within 2^53 of the largest double it may be infinite, and so is the result then."""

    shift: float
    times: float
    by: float

    def __call__(self, value: Any) -> Any:
        """A number, or a column of numbers, in the other unit. Steps that change nothing are left out."""
        value = value + self.shift if self.shift else value
        value = value * self.times if self.times != 1 else value
        return value / self.by if self.by != 1 else value


@cache
def conversion(unit: str, canonical: str) -> Linear | None:
    """What turns a number in ``unit`` into one in ``canonical``; None if it stays as it is.

    Raises UnitError. pint is imported only when two units differ: reading its definitions takes a third of a second.
    """
    if unit == canonical:
        return None
    import pint

    units = _registry()
    for name in (unit, canonical):
        try:
            units.Unit(name)
        except Exception as error:  # tokenizer's, pint's and arithmetic errors, for any text
            raise UnitError(f"{name!r} is no unit that pint knows (degC, °F, kPa, mV, km/h, …)") from error
    try:
        zero, one, far = (_converted(units, Fraction(number), unit, canonical) for number in (0, 1, 1000))
    except pint.DimensionalityError as error:
        raise UnitError(f"{unit!r} cannot become {canonical!r}: they measure different things") from error
    except Exception as error:  # logarithms of zero and the like
        raise UnitError(f"{unit!r} cannot become {canonical!r} by a factor and an offset") from error
    factor = one - zero
    if factor == 0 or far != zero + 1000 * factor:
        raise UnitError(f"{unit!r} cannot become {canonical!r} by a factor and an offset")
    shift = zero / factor
    times, by = factor.numerator, factor.denominator
    if max(abs(times), by) > _EXACT:
        return Linear(float(shift), float(factor), 1.0)
    return Linear(float(shift), float(times), float(by))


def _converted(units: Any, number: Fraction, unit: str, canonical: str) -> Fraction:
    became = units.Quantity(number, unit).to(canonical).magnitude
    if isinstance(became, float):
        raise TypeError("not a rational conversion")
    return Fraction(became)


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Fraction, autoconvert_offset_to_baseunit=False)
