"""Ways to other programs. Each needs an extra of its own, and nothing else of the package needs any of them."""
