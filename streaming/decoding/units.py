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
    """What turns a number in ``unit`` into one in ``canonical``; None if it stays as it is. Raises UnitError."""
    if unit == canonical:
        return None
    units, measured = _registry(), set()
    for name in (unit, canonical):
        try:
            measured.add(units.Unit(name).dimensionality)
        except Exception as error:  # tokenizer's, pint's and arithmetic errors, for any text
            raise UnitError(f"{name!r} is no unit that pint knows (degC, °F, kPa, mV, km/h, …)") from error
    if len(measured) > 1:
        raise UnitError(f"{unit!r} cannot become {canonical!r}: they measure different things")
    try:
        zero, one, far = (units.Quantity(Fraction(number), unit).m_as(canonical) for number in (0, 1, 1000))
        factor = one - zero
        is_linear = factor != 0 and far == zero + 1000 * factor and isinstance(factor, Fraction)
    except Exception:  # noqa: BLE001 (logarithms of zero and the like)
        is_linear = False
    if not is_linear:
        raise UnitError(f"{unit!r} cannot become {canonical!r} by a factor and an offset")
    times, by = factor.as_integer_ratio()
    if max(abs(times), by) > _EXACT:
        times, by = factor, 1
    return Linear(float(zero / factor), float(times), float(by))


@cache
def _registry() -> Any:
    import pint  # only when two units differ: reading its definitions takes a third of a second

    return pint.UnitRegistry(non_int_type=Fraction, autoconvert_offset_to_baseunit=False)
