"""Readers of files: documents, YAML nodes with places, typed fields, and files of the user."""
