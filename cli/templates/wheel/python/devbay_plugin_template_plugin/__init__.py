"""The devbay plugin template-plugin: a library and its manifest. devbay finds them by the package's entry point and imports nothing."""
