"""What the compiler did, in numbers counted from shapes: report.json, report.md and a picture of the arena."""

from gfcompile.report.files import read_report, write_report
from gfcompile.report.json_form import as_data
from gfcompile.report.report import make_report, survey_report
from gfcompile.report.schema import Report, SurveyReport

__all__ = ["Report", "SurveyReport", "as_data", "make_report", "read_report", "survey_report", "write_report"]
