"""onnxruntime's inner modules, as far as programs import them: exceptions and classes."""
