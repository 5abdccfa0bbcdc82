"""Execution of programs next to the scheduler: instructions, branches, calls of the model and of tools.

Programs come in; requests go to the engine; values, texts and one terminal event for each submission go out.

The children of a fork begin with their parent's tokens (`state.Branch.start_from`), and their requests find its prefix
in the cache as any request does (`runtime.scheduler`, `radix`).

When a client leaves while its submission is in flight, the program is dropped (`executor.Executor.drop`): all its
submissions that have begun fail, its branches stop, and its state is forgotten, kept or not. Requests of its branches
are aborted; an async tool is cancelled, one that waits for a thread never begins, and the result of one that runs on a
thread is ignored.
"""
