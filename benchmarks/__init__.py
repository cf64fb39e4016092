"""Speed, measured as ratios within one run on one machine. `make bench` writes docs/benchmarks.md."""
