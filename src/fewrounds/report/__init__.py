"""The report of an experiment: a page that works offline, figures for a paper, verdicts on the paper's claims."""

from fewrounds.report.page import write_report

__all__ = ["write_report"]
