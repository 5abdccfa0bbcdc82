"""Templates, style sheets and scripts of what people look at: timelines as pages, states in notebooks.

Values come in; HTML goes out, escaped, that needs nothing from outside itself.
"""
