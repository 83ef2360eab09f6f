"""The files that are merged: which of them, in which order, and the problems met in them."""
