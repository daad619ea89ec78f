"""Fair comparisons: benchmark, reality check, paired differences."""
