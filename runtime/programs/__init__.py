"""Programs executed beside the scheduler: instructions interpreted, branches, calls of the model and of tools.

Programs come in; requests go to the engine, values, texts and one terminal event go out.
"""
