"""Do what the verbs of the command line do, for Python users too. Print nothing."""
