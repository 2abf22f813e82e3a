"""Tests of `intervals`."""

import unittest

from intervals import covers, merge


class Merging(unittest.TestCase):
    """What is merged, and what is not."""

    def test_nothing(self):
        self.assertEqual([], merge([]))

    def test_touching(self):
        self.assertEqual([(1, 4)], merge([(1, 2), (3, 4)]))
        self.assertEqual([(1, 2), (4, 5)], merge([(1, 2), (4, 5)]))

    def test_inside(self):
        self.assertEqual([(1, 9)], merge([(1, 9), (2, 3)]))

    def test_order(self):
        self.assertEqual([(1, 2), (5, 6), (9, 9)], merge([(9, 9), (1, 2), (5, 6)]))

    def test_single(self):
        self.assertEqual([(3, 3)], merge([(3, 3)]))


class Refusing(unittest.TestCase):
    """What is no interval."""

    def test_empty(self):
        with self.assertRaises(ValueError):
            merge([(2, 1)])

    def test_not_whole(self):
        for pair in ((1.0, 2), (1, 2.0)):
            with self.assertRaises(TypeError):
                merge([pair])


class Covering(unittest.TestCase):
    """Both ends belong to an interval."""

    def test_ends(self):
        found = [number for number in range(9) if covers([(1, 3), (6, 6)], number)]
        self.assertEqual([1, 2, 3, 6], found)
