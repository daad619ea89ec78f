"""Fair comparisons: benchmark, reality check, what they cost, paired differences."""
