"""Fuzzers: files as nobody should write them. Whatever is in one, the program reads it or says clearly what is wrong.

``python -m tests.fuzz npz --cases 100000`` runs many cases of a kind; ``tests/fuzz/test_fuzz.py`` a few seconds' worth.
"""
