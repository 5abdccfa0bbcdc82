"""Programs executed beside the scheduler: instructions interpreted, branches, calls of the model and of tools.

Programs come in; requests go to the engine, values, texts and one terminal event go out. The children of a fork begin
with their parent's tokens (`state.Branch.start_from`), and their requests find its prefix in the cache as any request
does (`runtime.scheduler`, `radix`). A program whose client leaves is dropped: `executor.Executor.drop` fails all its
submissions in flight, stops their branches and forgets its state. An async tool is cancelled, one that waits for a
thread never begins, and one that runs on a thread is left to itself.
"""
