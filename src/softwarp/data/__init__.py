"""Image files -> tables -> splits -> stores -> batches of pixels."""
