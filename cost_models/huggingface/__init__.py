"""Models from a Hugging Face `config.json`."""
