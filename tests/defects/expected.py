"""What is said of each defect: held to what happens by the tests, and printed in the README."""

from __future__ import annotations

from dataclasses import dataclass

from tests.defects.reading import Complaint


@dataclass(frozen=True)
class Expected:
    """What the matrix says of a defect; None where it passes, or there is nothing to verify."""

    run: Complaint | None = None
    """The check that names it in a normal run, or `failure`; and words that name the cause."""
    verify: str | None = None
    """Words of verification that name the cause."""
    argument: str = ""
    """Why a normal run cannot catch it."""


EXPECTED: dict[str, Expected] = {
    "optimizer step skipped on one stage": Expected(verify="parameters"),
    "optimizer step skipped now and then, later in the run": Expected(verify="parameters"),
    "optimizer step taken twice": Expected(),
    "learning rate ten times too high on one stage": Expected(verify="parameters"),
    "learning rate that decays unasked, later in the run": Expected(verify="parameters"),
    "weight decay forgotten": Expected(),
    "half of the parameters not given to the optimizer": Expected(verify="parameters"),
    "Adam's moments forgotten before each step": Expected(),
    "Adam with other betas": Expected(),
    "gradients clipped unasked": Expected(),
    "gradients left over from the step before": Expected(),
    "another seed for one replica": Expected(verify="loss"),
    "initial values that do not depend on the seed": Expected(),
    "one seed for all layers": Expected(),
    "initial weights twice too large on one stage": Expected(verify="loss"),
    "a layer frozen that should train": Expected(),
    "cut in another place than planned": Expected(
        Complaint("parameters", "built over the stages of each replic"), verify="parameters"
    ),
    "stale activation: one micro-batch late": Expected(verify="loss"),
    "stale activation, later in the run": Expected(verify="parameters"),
    "a receive buffer re-used before its backward": Expected(verify="gradients"),
    "a gradient sent back to the wrong micro-batch": Expected(verify="gradients"),
    "activations sent in half precision": Expected(verify="loss"),
    "backward of one micro-batch dropped": Expected(verify="gradients"),
    "backward of one micro-batch taken twice": Expected(verify="gradients"),
    "no gradient crosses the cut": Expected(
        Complaint("gradients", "have parameters but no gradient: bac"), verify="gradients"
    ),
    "no gradient crosses the cut, later in the run": Expected(
        Complaint("gradients", "have parameters but no gradient: bac"), verify="parameters"
    ),
    "no gradient crosses the cut, of torch's schedule": Expected(
        Complaint("gradients", "have parameters but no gradient: bac"), verify="gradients"
    ),
    "gradients not shared by the replicas": Expected(
        Complaint("replicas", "gradient norms differed between repl"), verify="replicas"
    ),
    "gradients shared before the last micro-batch": Expected(
        Complaint("replicas", "gradient norms differed between repl"), verify="replicas"
    ),
    "one replica's gradient for all": Expected(verify="gradients"),
    "gradients divided by the micro-batches twice": Expected(),
    "gradients divided by the micro-batches twice on one stage": Expected(verify="gradients"),
    "gradients summed over micro-batches": Expected(
        Complaint("loss", "steps the loss that was differentiat")
    ),
    "gradients summed over replicas": Expected(),
    "the mean of each chunk's mean": Expected(
        Complaint("loss", "steps the loss that was differentiat")
    ),
    "the loss and its report smoothed alike": Expected(),
    "the softmax of scaled logits": Expected(),
    "labelled nodes miscounted": Expected(),
    "labels rolled in the loader": Expected(),
    "labels rolled in the loader, later in the run": Expected(),
    "labels of the next mini-batch": Expected(),
    "images of the mini-batch before": Expected(),
    "one buffer for two mini-batches": Expected(),
    "labels shuffled apart from images": Expected(
        Complaint("labels", "mini-batches whose labels at the las"), verify="labels"
    ),
    "colours swapped where all ranks take images": Expected(),
    "pixels not scaled to 0..1": Expected(),
    "rows and columns of images swapped": Expected(),
    "labels off by one where all ranks read them": Expected(),
    "an uneven last mini-batch": Expected(
        Complaint("failure", "micro-batches, some of"), verify="uneven batch"
    ),
    "micro-batches in another order on the last stage": Expected(verify="loss"),
    "node labels rolled within a chunk": Expected(),
    "node labels of other nodes, later in the run": Expected(),
    "features of other nodes": Expected(),
    "test nodes used for training": Expected(),
    "evaluated on the training images": Expected(),
    "noise added to the inputs, later in the run": Expected(verify="loss"),
    "never reshuffled: each epoch in the order of the first": Expected(),
    "not shuffled at all": Expected(),
    "an order that does not depend on the seed": Expected(),
    "samples drawn with replacement": Expected(
        Complaint("samples", "samples were seen more than once in"), verify="samples"
    ),
    "every replica trains on all of the data": Expected(
        Complaint("samples", "samples were seen more than once in"), verify="samples"
    ),
    "one mini-batch for the whole epoch": Expected(),
    "a halo one hop short": Expected(),
    "halo edges lost in the first layer only": Expected(),
    "an edge counted twice": Expected(),
    "no self-loops": Expected(),
    "one edge in fifty lost where all ranks read the graph": Expected(),
    "edges turned round where all ranks read the graph": Expected(),
    "the last node of each chunk left out of the loss": Expected(
        Complaint("loss", "steps the loss that was differentiat")
    ),
    "chunks without halo recorded as halo": Expected(),
    "dropout masks used twice: one for all steps": Expected(),
    "dropout masks used twice, later in the run": Expected(),
    "one dropout mask for all layers": Expected(),
    "dropout masks that do not depend on the seed": Expected(),
    "dropout at half its rate": Expected(),
    "kept entries not scaled up": Expected(),
    "no dropout in training": Expected(),
    "dropout in evaluation": Expected(),
    "backward through another dropout mask": Expected(),
    "dropout masks by the row of a chunk": Expected(),
    "a stage that evaluates in training mode": Expected(),
    "a stage that trains in evaluation mode": Expected(),
    "training goes on in evaluation mode after an evaluation": Expected(),
    "BatchNorm's statistics wrong in evaluation": Expected(),
    "running variance without Bessel's correction": Expected(),
    "running statistics that move too slowly": Expected(),
    "running statistics that stand still, later in the run": Expected(),
    "running statistics not averaged over replicas": Expected(),
    "BatchNorm with another epsilon": Expected(),
    "the first micro-batch's outputs for all in evaluation": Expected(),
    "evaluation's outputs wrong, later in the run": Expected(),
    "evaluation that leaves its last micro-batch's labels out": Expected(),
    "accuracy that counts every row twice where it is right": Expected(),
    "evaluation that trains": Expected(),
    "a step time that leaves the backward out": Expected(),
    "a clock at half speed": Expected(),
    "step times in milliseconds": Expected(Complaint("step times", "computed longer than")),
    "outliers replaced by the median, in silence": Expected(),
    "the clock stopped before the last stage is done": Expected(),
    "the optimizer's step outside the measured time": Expected(),
    "a negative step time": Expected(Complaint("step times", "computed longer than")),
    "a step time that is no number": Expected(
        Complaint("step times", "began before their time; the steps o")
    ),
    "step times halved on the way to the file": Expected(
        Complaint("records", "s of steps, rank 0 measured")
    ),
    "waiting booked as forward": Expected(),
    "half of the backwards booked as waiting": Expected(),
    "warm-up steps measured": Expected(Complaint("reader", "warmup: found False")),
    "one thread where two are recorded": Expected(),
    "one thread from the start where two are asked for": Expected(
        Complaint("threads", "were asked for"), verify="threads"
    ),
    "a rank pinned to one CPU while it trains": Expected(),
    "one rank without a compiler": Expected(
        Complaint("kernels", "ranks computed by different code: fu"), verify="kernels"
    ),
    "other kernels than recorded, later in the run": Expected(),
    "a kernel that is wrong in the third digit": Expected(),
    "a kernel's backward wrong in one parameter": Expected(),
    "a rank that runs other code": Expected(Complaint("failure", "on vm runs other code")),
    "a repeat by other code": Expected(
        Complaint("unlike", "code 0000000000000000 beside", "suspect")
    ),
    "a baseline by other code": Expected(Complaint("report", "not compared: code", "suspect")),
    "a repeat on another CPU model": Expected(
        Complaint("unlike", "CPU model Another CPU beside", "suspect")
    ),
    "one rank on another CPU model": Expected(
        Complaint("unlike", " and Another CPU beside", "suspect")
    ),
    "a repeat by another version of torch": Expected(
        Complaint("unlike", "torch 2.0.0 beside", "suspect")
    ),
    "a repeat with two threads a rank, the other with one": Expected(
        Complaint("unlike", "threads a rank 2 beside 1", "suspect")
    ),
    "a repeat without a compiler": Expected(
        Complaint("siblings", "unlike: kernels fused/torch beside fused/c++")
    ),
    "a repeat whose losses leave the others'": Expected(
        Complaint("siblings", "training loss of step 0 is")
    ),
    "a checkpoint with one bit changed": Expected(Complaint("checkpoint", "skipped")),
    "a checkpoint of another cell": Expected(),
    "a checkpoint with another cell's tensors": Expected(),
    "a checkpoint that says a later step": Expected(),
    "a checkpoint of other code": Expected(),
    "Adam's moments lost at a resume": Expected(),
    "BatchNorm's statistics lost at a resume": Expected(),
    "a stage that is not restored at a resume": Expected(),
    "a negative step time in a record": Expected(Complaint("reader", "wall_s: found -1.0")),
    "a warm-up step counted as measured": Expected(Complaint("reader", "warmup: found False")),
    "a step time of zero in a record": Expected(Complaint("reader", "wall_s: found 0.0")),
    "a step time that is no number in a record": Expected(Complaint("reader", "wall_s: found nan")),
    "a record that lost its step time": Expected(Complaint("reader", "wall_s: found nan")),
    "a start stamp from before the step before": Expected(
        Complaint("reader", "start_s: found 0.0")
    ),
    "step times halved by hand in one rank's records": Expected(
        Complaint("reader", "content: found changed since it was")
    ),
    "a rank's records of another cell": Expected(
        Complaint("reader", "rank-0001.jsonl: cell: found")
    ),
    "two ranks' records under each other's name": Expected(Complaint("reader", "rank: found 1")),
    "a rank without records": Expected(Complaint("reader", "no such file")),
    "a step missing from one rank's records": Expected(
        Complaint("reader", "train step: found 6 after 4")
    ),
    "the last steps missing from every rank's records": Expected(
        Complaint("reader", "train steps: found 6 steps")
    ),
    "a step recorded twice": Expected(Complaint("reader", "train step: found 5 after 5")),
    "a damaged line in the middle of a rank's records": Expected(
        Complaint("reader", "damaged JSON")
    ),
    "records of another schema": Expected(Complaint("reader", "schema")),
    "the result of another cell": Expected(Complaint("reader", "result.json: cell: found")),
    "an attempt of another cell": Expected(Complaint("reader", "result.json: cell: found")),
    "a result cut short": Expected(Complaint("reader", "damaged result")),
    "a result of other settings than the cell's": Expected(
        Complaint("reader", "microbatches: found 2")
    ),
}
