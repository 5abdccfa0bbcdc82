"""Templates, style sheets and scripts of HTML views: timelines as pages, states in notebooks.

Values come in; escaped, self-contained HTML goes out.
"""
