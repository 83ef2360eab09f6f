"""The live view of a dispatcher in a terminal: its layout, and the area that is drawn over."""
