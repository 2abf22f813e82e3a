"""Closed intervals of whole numbers, as pairs."""


def merge(intervals):
    """Return the intervals that cover the same numbers: sorted, and no two of them touching.

    Intervals touch when no whole number lies between them, as (1, 2) and (3, 4). Raises ValueError for a pair whose
    first number is greater than its second, and TypeError for numbers that are not whole.
    """
    for low, high in intervals:
        if type(low) is not int or type(high) is not int:
            raise TypeError("whole numbers only")
        if low > high:
            raise ValueError("an interval that is empty")
    merged = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def covers(intervals, number):
    """Return whether a number is in any of the intervals."""
    return any(low <= number <= high for low, high in intervals)
