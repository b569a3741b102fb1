"""The answer of the planner, as text and as JSON."""

from flowtrain.plan.report.answer import Answer, Point, Question, Scaled
from flowtrain.plan.report.explain import explain_text
from flowtrain.plan.report.text import answer_text
from flowtrain.plan.report.tree import answer_tree

__all__ = [
    "Answer",
    "Point",
    "Question",
    "Scaled",
    "answer_text",
    "answer_tree",
    "explain_text",
]
