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
    "optimizer step skipped on one stage": Expected(
        Complaint("optimizer", "did not move: the optimizer's step was skipped"),
        verify="parameters",
    ),
    "optimizer step skipped now and then, later in the run": Expected(
        Complaint("optimizer", "did not move: the optimizer's step was skipped"),
        verify="parameters",
    ),
    "optimizer step taken twice": Expected(
        Complaint("optimizer", "the optimizer's step was applied twice")
    ),
    "learning rate ten times too high on one stage": Expected(
        Complaint("optimizer", "moved 10 times as far as learning rate"), verify="parameters"
    ),
    "learning rate that decays unasked, later in the run": Expected(
        Complaint("optimizer", "moved 0.5 times as far as learning rate"), verify="parameters"
    ),
    "weight decay forgotten": Expected(Complaint("optimizer", "moved without weight decay")),
    "half of the parameters not given to the optimizer": Expected(
        Complaint("optimizer", "did not move, though others did"), verify="parameters"
    ),
    "Adam's moments forgotten before each step": Expected(
        Complaint("optimizer", "moved as in a first step")
    ),
    "Adam with other betas": Expected(Complaint("optimizer", "the optimizer's state is not what")),
    "gradients clipped unasked": Expected(
        Complaint("gradients used", "times the mean of what 1 replicas' back")
    ),
    "gradients left over from the step before": Expected(
        Complaint("optimizer", "gradients of the step before were still there")
    ),
    "another seed for one replica": Expected(
        Complaint("initial values", "did not begin with the values that the seed"), verify="loss"
    ),
    "initial values that do not depend on the seed": Expected(
        Complaint("initial values", "did not begin with the values that the seed")
    ),
    "one seed for all layers": Expected(
        Complaint("initial values", "did not begin with the values that the seed")
    ),
    "initial weights twice too large on one stage": Expected(
        Complaint("initial values", "did not begin with the values that the seed"), verify="loss"
    ),
    "a layer frozen that should train": Expected(
        Complaint("initial values", "would train, and is frozen")
    ),
    "cut in another place than planned": Expected(
        Complaint("cut", "ranks [1] do not hold the layers planned"), verify="parameters"
    ),
    "stale activation: one micro-batch late": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"), verify="loss"
    ),
    "stale activation, later in the run": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="parameters",
    ),
    "a receive buffer re-used before its backward": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="gradients",
    ),
    "a gradient sent back to the wrong micro-batch": Expected(
        Complaint("cuts", "the gradient of the output of stage 0 is not the gradient"),
        verify="gradients",
    ),
    "activations sent in half precision": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"), verify="loss"
    ),
    "backward of one micro-batch dropped": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin at"),
        verify="gradients",
    ),
    "backward of one micro-batch taken twice": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin at"),
        verify="gradients",
    ),
    "no gradient crosses the cut": Expected(
        Complaint("gradients", "no gradient: backward did not reach them"), verify="gradients"
    ),
    "no gradient crosses the cut, later in the run": Expected(
        Complaint("cuts", "the gradient of the output of stage 0 is not the gradient"),
        verify="parameters",
    ),
    "no gradient crosses the cut, of torch's schedule": Expected(
        Complaint("gradients", "no gradient: backward did not reach them"), verify="gradients"
    ),
    "stale activation, of torch's schedule": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of")
    ),
    "activations sent in single precision, not double": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of")
    ),
    "gradients not shared by torch's replicas": Expected(
        Complaint("replicas", "gradient norms differed between repl")
    ),
    "one wrong micro-batch in one step of the run": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of")
    ),
    "gradients not shared by the replicas": Expected(
        Complaint("replicas", "gradient norms differed between repl"), verify="replicas"
    ),
    "gradients shared before the last micro-batch": Expected(
        Complaint("replicas", "gradient norms differed between repl"), verify="replicas"
    ),
    "one replica's gradient for all": Expected(
        Complaint("gradients used", "times the mean of what 2 replicas' backwards"),
        verify="gradients",
    ),
    "gradients divided by the micro-batches twice": Expected(
        Complaint("gradients used", "is 0.25 times the mean of what 1 replicas'")
    ),
    "gradients divided by the micro-batches twice on one stage": Expected(
        Complaint("gradients used", "is 0.25 times the mean of what 1 replicas'"),
        verify="gradients",
    ),
    "gradients summed over micro-batches": Expected(
        Complaint("loss", "the loss that was differentiated is not the mean")
    ),
    "gradients summed over replicas": Expected(
        Complaint("gradients used", "is 2 times the mean of what 2 replicas'")
    ),
    "the mean of each chunk's mean": Expected(Complaint("loss", "or a mean of masked means")),
    "the loss and its report smoothed alike": Expected(
        Complaint("raw loss", "of the raw labels 33.7")
    ),
    "the softmax of scaled logits": Expected(Complaint("raw loss", "of the raw labels 33.7")),
    "labelled nodes miscounted": Expected(Complaint("raw loss", "of the raw labels 1.95")),
    "labels rolled in the loader": Expected(
        Complaint("targets", "they are shifted by 1 against the inputs")
    ),
    "labels rolled in the loader, later in the run": Expected(
        Complaint("targets", "they are shifted by 1 against the inputs")
    ),
    "labels of the next mini-batch": Expected(
        Complaint("targets", "they are those of the step after")
    ),
    "images of the mini-batch before": Expected(
        Complaint("inputs", "they are those of the step before")
    ),
    "one buffer for two mini-batches": Expected(
        Complaint("inputs", "they are those of the step after")
    ),
    "labels shuffled apart from images": Expected(
        Complaint("labels", "mini-batches whose labels at the last stage are not"), verify="labels"
    ),
    "colours swapped where all ranks take images": Expected(
        Complaint("inputs", "pixels or colours are in another order")
    ),
    "pixels not scaled to 0..1": Expected(Complaint("inputs", "they are scaled by 255")),
    "rows and columns of images swapped": Expected(
        Complaint("inputs", "pixels or colours are in another order")
    ),
    "labels off by one where all ranks read them": Expected(
        Complaint("targets", "have another class")
    ),
    "an uneven last mini-batch": Expected(
        Complaint("failure", "micro-batches, some of"), verify="uneven batch"
    ),
    "micro-batches in another order on the last stage": Expected(
        Complaint("targets", "labels differ from the raw data"), verify="loss"
    ),
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
    "a halo one hop short": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks")
    ),
    "halo edges lost in the first layer only": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks")
    ),
    "an edge counted twice": Expected(Complaint("chunks", "edges too many")),
    "no self-loops": Expected(Complaint("chunks", "layer 0 of those that use neighbours lacks")),
    "one edge in fifty lost where all ranks read the graph": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks")
    ),
    "edges turned round where all ranks read the graph": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks")
    ),
    "the last node of each chunk left out of the loss": Expected(
        Complaint("targets", "differ from the graph's labels")
    ),
    "chunks without halo recorded as halo": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks")
    ),
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
    "a stage that evaluates in training mode": Expected(
        Complaint("modes", "test step 0: the stage is not in evaluation mode")
    ),
    "a stage that trains in evaluation mode": Expected(
        Complaint("modes", "train step 0: the stage is not in training mode")
    ),
    "training goes on in evaluation mode after an evaluation": Expected(
        Complaint("modes", "train step 5: the stage is not in training mode")
    ),
    "BatchNorm's statistics wrong in evaluation": Expected(
        Complaint("statistics", "is not the mean of those of 1 replicas")
    ),
    "running variance without Bessel's correction": Expected(),
    "running statistics that move too slowly": Expected(),
    "running statistics that stand still, later in the run": Expected(
        Complaint("running statistics", "stood still")
    ),
    "running statistics not averaged over replicas": Expected(
        Complaint("statistics", "is not the mean of those of 2 replicas")
    ),
    "BatchNorm with another epsilon": Expected(),
    "the first micro-batch's outputs for all in evaluation": Expected(
        Complaint("outputs", "are not what the last stage's forward gave")
    ),
    "evaluation's outputs wrong, later in the run": Expected(
        Complaint("outputs", "are not what the last stage's forward gave")
    ),
    "evaluation that leaves its last micro-batch's labels out": Expected(
        Complaint("metrics", "of the outputs and the raw labels")
    ),
    "accuracy that counts every row twice where it is right": Expected(
        Complaint("metrics", "of the outputs and the raw labels")
    ),
    "evaluation that trains": Expected(Complaint("evaluation", "evaluation changed")),
    "a step time that leaves the backward out": Expected(
        Complaint("step times", "it leaves the backward out")
    ),
    "a clock at half speed": Expected(
        Complaint("step times", "its clock ran at 0.50 of a second cl")
    ),
    "step times in milliseconds": Expected(
        Complaint("step times", "steps were recorded as 0.001 of the")
    ),
    "outliers replaced by the median, in silence": Expected(
        Complaint("step times", "of the time between their barriers")
    ),
    "the clock stopped before the last stage is done": Expected(
        Complaint("step times", "of the time between their barriers")
    ),
    "the optimizer's step outside the measured time": Expected(
        Complaint("step times", "1 optimizer step before train step")
    ),
    "a negative step time": Expected(Complaint("step times", "a length that no step has")),
    "a step time that is no number": Expected(Complaint("step times", "a length that no step has")),
    "step times halved on the way to the file": Expected(
        Complaint("records", "s of steps, rank 0 measured")
    ),
    "throughput of twice the samples": Expected(
        Complaint("throughput", "16 samples a step are told")
    ),
    "throughput of the samples that two replicas share": Expected(
        Complaint("reader", "samples: found 8")
    ),
    "no barrier at the end of a step": Expected(),
    "the best evaluation reported as the last": Expected(
        Complaint("reader", "final.test_loss: found")
    ),
    "waiting booked as forward": Expected(
        Complaint("spans", "before its stage began to compute", "suspect")
    ),
    "half of the backwards booked as waiting": Expected(
        Complaint("step times", "in no backward span")
    ),
    "warm-up steps measured": Expected(Complaint("reader", "warmup: found False")),
    "one thread where two are recorded": Expected(
        Complaint("threads", "ran 1 threads from train step 0 on")
    ),
    "one thread from the start where two are asked for": Expected(
        Complaint("threads", "were asked for"), verify="threads"
    ),
    "a rank pinned to one CPU while it trains": Expected(
        Complaint("affinity", "had fewer CPUs than before", "suspect")
    ),
    "one rank without a compiler": Expected(
        Complaint("kernels", "ranks computed by different code: fu"), verify="kernels"
    ),
    "other kernels than recorded, later in the run": Expected(
        Complaint("kernels", "called otherwise than in the first")
    ),
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
    "the order of the data begun anew at a resume": Expected(),
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
