"""The large model servers: transformers and vLLM."""
