"""Speed, measured as ratios within one run on one machine. `tba bench` runs these and writes docs/benchmarks.md."""
