"""The answer of the planner, as text, as JSON, and as a page."""

from flowtrain.plan.report.answer import Answer, Point, Question, Scaled
from flowtrain.plan.report.explain import explain_text
from flowtrain.plan.report.page import answer_page
from flowtrain.plan.report.text import answer_text
from flowtrain.plan.report.tree import answer_tree

__all__ = [
    "Answer",
    "Point",
    "Question",
    "Scaled",
    "answer_page",
    "answer_text",
    "answer_tree",
    "explain_text",
]
