"""Speed, measured as ratios within one run on one machine. `python -m benchmarks` runs these and writes
docs/benchmarks.md."""
