"""Audits: any model on any data, measured by every check, compared and held to gates."""
