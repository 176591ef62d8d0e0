"""The CRC-32 of texts that follow each other, from their own: zlib's crc32_combine.

Python's zlib does not have it. The arithmetic is zlib's (crc32.c, `multmodp` and `x2nmodp`): a CRC
is a polynomial over GF(2), reflected, and what follows shifts it by its length.
"""

from __future__ import annotations

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # x to the power of 0


def combine_crc(first: int, second: int, length: int) -> int:
    """The CRC of two texts, from that of each and the second's length in bytes."""
    return _multiply(_shift_by(length), first) ^ second


def _multiply(left: int, right: int) -> int:
    product, bit = 0, _ONE
    while bit:
        if left & bit:
            product ^= right
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
        bit >>= 1
    return product


def _shift_by(length: int) -> int:
    """x to the power of 8 times the length, by squaring."""
    power, square = _ONE, 1 << 23  # x to the power of 8
    while length:
        if length & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        length >>= 1
    return power
