"""The checks of an audit, one package per check. A package's own file declares the check (settings, needs, measures,
cost) without importing torch; the files beside it measure. Add a check: declare it with :func:`holdfast.parts.check`.
"""
