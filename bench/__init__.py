"""Side-by-side measurements, run by hand; what they found is kept as data in `results/`."""
