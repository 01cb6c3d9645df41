"""Fuzzing of every decoder: ``python -m fuzz TARGET --seconds N``; see CONTRIBUTING.md and docs/security.md."""
