"""Images that programs draw, which stand in for data sets that are not there."""
