"""A worker for `gpusched pool`: it loads its model once, and then describes one picture after the other.

The model here is a stand-in, so that the example runs anywhere.
"""

import gpusched


class Caption(gpusched.Worker):
    tunable = {"batch_size": [8, 16, 32, 64]}

    def setup(self, device, settings):
        """Load the model; with torch: self.model = load(settings["model"]).to(device)."""
        self.model = {"device": device, "name": settings.get("model", "small")}

    def batch(self, items):
        """Describe several pictures at once, in their order."""
        return [{"text": f"a picture called {item}", "model": self.model["name"]} for item in items]
