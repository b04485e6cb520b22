"""Looking into dumps of any size: an index of their samples, one sample's rows, and two of either beside each other."""
