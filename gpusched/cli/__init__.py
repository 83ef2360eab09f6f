"""The front door: click verbs, one file a family. Nothing imports it."""
