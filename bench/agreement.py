"""Losses on which ours and a peer must agree, as they train the same model on the same batches.

A program that prints times of a training also prints a loss under a case of its own. Where the losses differ, the times
are those of different things, and the run fails.
"""

TOLERANCE = 1e-4  # of the loss; rounding alone makes far less, and steps without averaging more than ten times that
LOSSES = [("ddp_loss_transformer", "torch_ddp"), ("ddp_loss_cnn", "torch_ddp")]


def disagreements(figures):
    """Sentences, by (peer, case)."""
    found = {}
    for case, peer in LOSSES:
        ours, others = figures.of(case, "ours"), figures.of(case, peer)
        # `not all`: a loss that is no number agrees with none.
        if ours and others and not all(abs(value - ours[0]) <= TOLERANCE * abs(ours[0]) for value in ours + others):
            found[peer, case] = f"ours ends at the losses {ours} and {peer} at {others}: they did not train the same"
    return found
