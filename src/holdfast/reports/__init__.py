"""Findings and run folders to console, JSON and HTML. Sees files and findings only, never a model."""

from holdfast.reports.findings_file import read_findings, write_findings
from holdfast.reports.html import report, write_report
from holdfast.reports.renderings import comparison_table, findings_table
from holdfast.reports.run_files import RunFiles, read_runs

__all__ = [
    "RunFiles", "comparison_table", "findings_table", "read_findings", "read_runs", "report", "write_findings",
    "write_report",
]  # fmt: skip
