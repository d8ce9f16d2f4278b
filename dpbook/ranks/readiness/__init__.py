"""Is this machine ready? What a launch would fail of, found before it begins."""
