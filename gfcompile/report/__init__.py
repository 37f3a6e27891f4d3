"""What the compiler did, in numbers counted from shapes: report.json, report.md and a picture of the arena."""

from gfcompile.report.report import make_report, survey_report, write_report

__all__ = ["make_report", "survey_report", "write_report"]
