"""Choose the next measurement for what it adds to a decision per GPU-hour, and say when to stop.

Pure: settings and observations in, proposals out. ``plan`` is the entry point.
"""

from wattlaw.analysis.decide.plan import Plan, Proposal, plan
from wattlaw.analysis.decide.question import Candidate, Question, is_long_enough, may_fit_memory

__all__ = ["Candidate", "Plan", "Proposal", "Question", "is_long_enough", "may_fit_memory", "plan"]
