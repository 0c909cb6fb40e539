"""Ways to choose K, one a file."""
