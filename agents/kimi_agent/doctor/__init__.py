"""The doctor: evidence in, one verdict out."""
