from .canvas import Sketch
def rank_label(rank, root=False):
    """'rank 2', with a star before a root."""
    return ("★ " if root else "") + f"rank {rank}"
def messages(calls):
    s=Sketch(); s.text(0,10,"todo",align="left"); return s,"m"
def barrier(call):
    s=Sketch(); s.text(0,10,"todo",align="left"); return s
