"""What recipes of several kinds of heads share: the contract, rows below anchors, first weights."""
