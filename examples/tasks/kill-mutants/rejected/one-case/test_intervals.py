"""Too little: most that is wrong passes."""

import unittest

from intervals import merge


class Merging(unittest.TestCase):
    """One case."""

    def test_touching(self):
        self.assertEqual([(1, 4)], merge([(1, 2), (3, 4)]))
