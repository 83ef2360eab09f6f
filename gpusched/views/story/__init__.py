"""The story of a queue: all that it did, as values, and the page that draws them."""
