"""Networks before training: their features, computed once, and which network suits a folder of images."""
