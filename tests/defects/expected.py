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
        verify="update: block",
    ),
    "optimizer step skipped now and then, later in the run": Expected(
        Complaint("optimizer", "did not move: the optimizer's step was skipped"),
        verify="update: block",
    ),
    "optimizer step taken twice": Expected(
        Complaint("optimizer", "the optimizer's step was applied twice"), verify="update: block"
    ),
    "learning rate ten times too high on one stage": Expected(
        Complaint("optimizer", "moved 10 times as far as learning rate"), verify="update: block"
    ),
    "learning rate that decays unasked, later in the run": Expected(
        Complaint("optimizer", "moved 0.5 times as far as learning rate"), verify="update: block"
    ),
    "learning rate too high where no look was drawn": Expected(
        Complaint("optimizer", "moved 3 times as far as learning rate"), verify="update: block"
    ),
    "weight decay forgotten": Expected(
        Complaint("optimizer", "moved without weight decay"), verify="update: block"
    ),
    "half of the parameters not given to the optimizer": Expected(
        Complaint("optimizer", "did not move, though others did"), verify="update: block"
    ),
    "Adam's moments forgotten before each step": Expected(
        Complaint("optimizer", "moved as in a first step"), verify="update: block"
    ),
    "Adam with other betas": Expected(
        Complaint("optimizer", "the optimizer's state is not what"), verify="update: block"
    ),
    "gradients clipped unasked": Expected(
        Complaint("gradients used", "times the mean of what 1 replicas' back"),
        verify="though its output and the layers after it ag",
    ),
    "gradients left over from the step before": Expected(
        Complaint("optimizer", "gradients of the step before were still there"),
        verify="though its output and the layers after it ag",
    ),
    "another seed for one replica": Expected(
        Complaint("initial values", "did not begin with the values that the seed"),
        verify="replicas: initial values of block",
    ),
    "initial values that do not depend on the seed": Expected(
        Complaint("initial values", "did not begin with the values that the seed"),
        verify="did not begin with the values that the seed",
    ),
    "one seed for all layers": Expected(
        Complaint("initial values", "did not begin with the values that the seed"),
        verify="did not begin with the values that the seed",
    ),
    "initial weights twice too large on one stage": Expected(
        Complaint("initial values", "did not begin with the values that the seed"),
        verify="grapher has not its seed's",
    ),
    "a layer frozen that should train": Expected(
        Complaint("initial values", "would train, and is frozen"), verify="grapher differs by"
    ),
    "cut in another place than planned": Expected(
        Complaint("failure", "cut: ranks [1] do not hold the layers planned"),
        verify="do not hold the layers planned",
    ),
    "generators that no one seeds": Expected(
        Complaint("generators", "torch's, Python's, numpy's did not begin where the seed says")
    ),
    "one seed for the generators of all ranks": Expected(
        Complaint("generators", "did not begin where the seed says for rank 1")
    ),
    "generators seeded whatever the seed": Expected(
        Complaint("generators", "did not begin where the seed says for rank 0")
    ),
    "stale activation: one micro-batch late": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="grapher in train step",
    ),
    "stale activation, later in the run": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="grapher in train step",
    ),
    "a receive buffer re-used before its backward": Expected(
        Complaint("self-check", "though its output and the layers after it agree"),
        verify="grapher differs by",
    ),
    "a gradient sent back to the wrong micro-batch": Expected(
        Complaint("cuts", "the gradient of the output of stage 0 is not the gradient"),
        verify="gradients: block",
    ),
    "activations sent in half precision": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="grapher in train step",
    ),
    "backward of one micro-batch dropped": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin at"),
        verify="though its output and the layers after it ag",
    ),
    "backward of one micro-batch taken twice": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin at"),
        verify="though its output and the layers after it ag",
    ),
    "no gradient crosses the cut": Expected(
        Complaint("gradients", "no gradient: backward did not reach them"),
        verify="gradients: ranks",
    ),
    "no gradient crosses the cut, later in the run": Expected(
        Complaint("cuts", "the gradient of the output of stage 0 is not the gradient"),
        verify="backward: stages",
    ),
    "no gradient crosses the cut, of torch's schedule": Expected(
        Complaint("gradients", "no gradient: backward did not reach them"),
        verify="gradients: ranks",
    ),
    "stale activation, of torch's schedule": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="grapher in train step",
    ),
    "activations sent in single precision, not double": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of"),
        verify="grapher in train step",
    ),
    "gradients not shared by torch's replicas": Expected(
        Complaint("replicas", "gradient norms differed between repl"),
        verify="replicas: gradient norms differed between re",
    ),
    "one wrong micro-batch in one step of the run": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1 of")
    ),
    "gradients not shared by the replicas": Expected(
        Complaint("replicas", "gradient norms differed between repl"),
        verify="replicas: gradient norms differed between re",
    ),
    "gradients shared before the last micro-batch": Expected(
        Complaint("replicas", "gradient norms differed between repl"),
        verify="replicas: gradient norms differed between re",
    ),
    "one replica's gradient for all": Expected(
        Complaint("gradients used", "times the mean of what 2 replicas' backwards"),
        verify="though its output and the layers after it ag",
    ),
    "a tensor counted as sent before it is copied": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1"),
        verify="output of stage 0 is not the input of stage 1",
    ),
    "a slot written before it was taken, later in the run": Expected(
        Complaint("cuts", "the output of stage 0 is not the input of stage 1"),
        verify="output of stage 0 is not the input of stage 1",
    ),
    "slots counted otherwise by the rank that takes": Expected(
        Complaint("cuts", "is not the input of stage 1 of micro-batches [3]: it is that of [0]"),
        verify="output of stage 0 is not the input of stage 1",
    ),
    "the input of one part of a stage taken for another's": Expected(
        Complaint("cuts", "output of part 1 of stage 0 is not the input of part 1 of stage 1"),
        verify="output of part 1 of stage 0 is not the input",
    ),
    "parts of a stage in another order than planned": Expected(
        Complaint("failure", "do not hold the layers planned [1, 1, 1, 2]"),
        verify="do not hold the layers planned",
    ),
    "a later part's gradients lost, later in the run": Expected(
        Complaint("cuts", "of part 0 of stage 1 is not the gradient of the input of part 1 of st"),
        verify="have no gradient, backward did not cross",
    ),
    "a first backward later than the interleaved schedule's": Expected(
        Complaint("engine", "did 4 forwards before its first backward, interleaved has 3"),
    ),
    "seconds of a stage's parts exchanged in the record": Expected(
        Complaint("step times", "a part's seconds that are not the sum of its spans"),
        verify="a part's seconds that are not the sum of its s",
    ),
    "waiting for a later part's input booked as its forward": Expected(
        Complaint("spans", "before its stage began to compute", "suspect")
    ),
    "a later part given another step's masks": Expected(
        Complaint("last self-check", "ran for 0 of 4 micro-batches"),
        verify="ran for 0 of 4 micro-batches",
    ),
    "spans of a stage's parts booked to each other": Expected(
        Complaint("step times", "forward spans of other parts or micro-batches than were comp"),
    ),
    "a part's forwards booked to other micro-batches": Expected(
        Complaint("step times", "forward spans of other parts or micro-batches than were comp"),
    ),
    "two actions exchanged late in the interleaved schedule": Expected(
        Complaint("engine", "did F3' as action 11 of a step, interleaved has B2' there"),
    ),
    "one part computed again for what another was to be": Expected(
        Complaint("step times", "6, where it asks for 6; (part, micro-batch) [(0, 3), (1, 2)]"),
    ),
    "a later part evaluated of another micro-batch's input": Expected(
        Complaint("final-check", "computed again in one process from the final parameters"),
        verify="block1.grapher in test step",
    ),
    "a later part that trains in evaluation mode for two steps": Expected(
        Complaint("running statistics", "stood still"),
        verify="block1.grapher in train step 4",
    ),
    "one replica with a stage's parts exchanged": Expected(
        Complaint("failure", "ranks [2] do not hold the layers planned [1, 1, 1, 2]"),
        verify="do not hold the layers planned",
    ),
    "one part's gradients not shared by the replicas": Expected(
        Complaint("replica parameters", "differ between replicas 0 and 1"),
        verify="on replica 1 are not replica 0's",
    ),
    "parts exchanged under torch's schedule": Expected(
        Complaint("cuts", "output of part 0 of stage 0 is not the input of part 0 of stage 1"),
        verify="output of part 0 of stage 0 is not the input",
    ),
    "one micro-batch's gradients of weights never computed, later in the run": Expected(
        Complaint("engine", "did B3 as action 9 of a step, zero-bubble has W2 there"),
        verify="backwards reached layer0.attention.lin.weight, of 4 micro-batches",
    ),
    "gradients of weights computed in the next step, later in the run": Expected(
        Complaint("engine", "did nothing as action 11 of a step, zero-bubble has W3 there"),
        verify="backwards reached layer0.attention.lin.weight, of 4 micro-batches",
    ),
    "gradients of weights computed with the backward, told as apart": Expected(
        Complaint("engine", "zero-bubble has W0 there"),
    ),
    "gradients of weights computed at once on the last stage": Expected(
        Complaint("engine", "did W0 as action 2 of a step, zero-bubble has F1 there"),
    ),
    "a received input overwritten before its weights' gradients are computed": Expected(
        Complaint("self-check", "gradients: layer1.attention differs by"),
        verify="gradients: layer1.attention differs by",
    ),
    "gradients of weights booked as backward": Expected(
        Complaint("step times", "weights of micro-batches in no weights span"),
    ),
    "the rest of each backward of inputs booked as waiting": Expected(
        Complaint("step times", "of what hooks saw of them"),
        verify="a span's processor time that its thread cannot have used",
    ),
    "half of the seconds of weights in the record": Expected(
        Complaint("records", "train step 0 has weights_s"),
    ),
    "waiting after a micro-batch's weights booked as theirs": Expected(
        Complaint("spans", "s after its stage had computed", "suspect"),
    ),
    "one replica's gradients of weights after they were averaged": Expected(
        Complaint("gradients used", "times the mean of what 2 replicas' backwards gave"),
        verify="differ between replicas 0 and 1",
    ),
    "a little more handed to a stage's second part, later in the run": Expected(
        Complaint("cuts", "the output of part 0 of stage 1 is not the input of part 1 of stage 1"),
        verify="output of part 0 of stage 1 is not the input",
    ),
    "the gradient handed to a stage's first part lost, later in the run": Expected(
        Complaint("cuts", "of part 0 of stage 1 is not the gradient of the input of part 1 of st"),
        verify="have no gradient, backward did not cross",
    ),
    "the micro-batch before handed over once more, later in the run": Expected(
        Complaint("cuts", "the output of part 0 of stage 1 is not the input of part 1 of stage 1"),
        verify="output of part 0 of stage 1 is not the input",
    ),
    "two actions exchanged late in ZBV": Expected(
        Complaint("engine", "did B3 as action 21 of a step, zbv has W2 there"),
    ),
    "all of a stage's first part evaluated before its second one": Expected(
        Complaint("engine", "did F3 as action 3 of an evaluation, zbv has F0' there"),
    ),
    "waits booked as gradients of weights where none were left": Expected(
        Complaint("spans", "in parts that leave no gradients of weights", "suspect"),
    ),
    "a second part's gradients of weights never computed, later in the run": Expected(
        Complaint("engine", "did F3 as action 8 of a step, zbv has W1' there"),
        verify="backwards reached layer3.convolution.lin.weight, of 4 micro-batches",
    ),
    "gradients of weights booked to the stage's other part": Expected(
        Complaint("step times", "weights spans of other parts or micro-batches than were computed"),
    ),
    "a part's seconds of weights left out of the record": Expected(
        Complaint("step times", "a part's seconds that are not the sum of its spans"),
        verify="a part's seconds that are not the sum of its s",
    ),
    "one replica's second part not shared": Expected(
        Complaint("gradients used", "times the mean of what 2 replicas' backwards gave"),
        verify="on replica 1 are not replica 0's",
    ),
    "one micro-batch's gradients of weights never computed under torch's schedule": Expected(
        Complaint("engine", "did B2 as action 17 of a step, zbv has W2' there"),
        verify="backwards reached layer1.convolution.lin.weight, of 4 micro-batches",
    ),
    "the loss of one micro-batch taken twice under torch's schedule": Expected(
        Complaint("raw loss", "the loss is"),
        verify="of the raw labels",
    ),
    "a bucket reduced a layer too early": Expected(
        Complaint("replicas", "gradient norms differed between repl"),
        verify="on replica 1 are not replica 0's",
    ),
    "buckets reduced before the last micro-batch": Expected(
        Complaint("replicas", "gradient norms differed between repl"),
        verify="on replica 1 are not replica 0's",
    ),
    "one bucket not reduced, later in the run": Expected(
        Complaint("replica parameters", "differ between replicas 0 and 1"),
        verify="on replica 1 are not replica 0's",
    ),
    "one bucket summed, not averaged": Expected(
        Complaint("gradients used", "times the mean of what 2 replicas' backwards gave"),
        verify="layer2.convolution differs by",
    ),
    "all gradients reduced at once where buckets were asked for": Expected(
        Complaint("all-reduce", "reduced 10 times in 10 steps, 5 a step expected", "suspect"),
    ),
    "gradients divided by the micro-batches twice": Expected(
        Complaint("gradients used", "is 0.25 times the mean of what 1 replicas'"),
        verify="scale: gradients are the twin's divided by",
    ),
    "gradients divided by the micro-batches twice on one stage": Expected(
        Complaint("gradients used", "is 0.25 times the mean of what 1 replicas'"),
        verify="gradients: block",
    ),
    "gradients summed over micro-batches": Expected(
        Complaint("loss", "the loss that was differentiated is not the mean"),
        verify="steps the loss that was differentiated is no",
    ),
    "gradients summed over replicas": Expected(
        Complaint("gradients used", "is 2 times the mean of what 2 replicas'"),
        verify="times the twin's, summed over",
    ),
    "the mean of each chunk's mean": Expected(
        Complaint("loss", "or a mean of masked means"),
        verify="steps the loss that was differentiated is no",
    ),
    "the loss and its report smoothed alike": Expected(
        Complaint("raw loss", "of the raw labels 33.7"), verify="where the twin has"
    ),
    "the softmax of scaled logits": Expected(
        Complaint("raw loss", "of the raw labels 33.7"), verify="where the twin has"
    ),
    "labelled nodes miscounted": Expected(
        Complaint("raw loss", "of the raw labels 1.95"), verify="where the twin has"
    ),
    "labels rolled in the loader": Expected(
        Complaint("targets", "they are shifted by 1 against the inputs"),
        verify="labels: train step",
    ),
    "labels rolled in the loader, later in the run": Expected(
        Complaint("targets", "they are shifted by 1 against the inputs"),
        verify="labels: train step",
    ),
    "labels rolled where no look was drawn": Expected(
        Complaint("targets", "8 of 8 labels differ from the raw data"), verify="labels: train step"
    ),
    "labels of the next mini-batch": Expected(
        Complaint("targets", "they are those of the step after"), verify="labels: train step"
    ),
    "images of the mini-batch before": Expected(
        Complaint("inputs", "they are those of the step before"), verify="inputs: train step"
    ),
    "one buffer for two mini-batches": Expected(
        Complaint("inputs", "they are those of the step after"), verify="inputs: train step"
    ),
    "labels shuffled apart from images": Expected(
        Complaint("labels", "mini-batches that are not the same on all stages"),
        verify="mini-batches that are not the same on all",
    ),
    "colours swapped where all ranks take images": Expected(
        Complaint("inputs", "pixels or colours are in another order"), verify="inputs: train step"
    ),
    "pixels not scaled to 0..1": Expected(
        Complaint("inputs", "they are scaled by 255"), verify="inputs: train step"
    ),
    "rows and columns of images swapped": Expected(
        Complaint("inputs", "pixels or colours are in another order"), verify="inputs: train step"
    ),
    "labels off by one where all ranks read them": Expected(
        Complaint("targets", "every class is 1 too high"), verify="labels: train step"
    ),
    "an uneven last mini-batch": Expected(
        Complaint("failure", "uneven batch"), verify="uneven batch"
    ),
    "micro-batches in another order on the last stage": Expected(
        Complaint("targets", "micro-batches come in the opposit"), verify="labels: train step"
    ),
    "node labels rolled within a chunk": Expected(
        Complaint("targets", "differ from the graph's labels"), verify="labels: train step"
    ),
    "node labels of other nodes, later in the run": Expected(
        Complaint("targets", "differ from the graph's labels"), verify="labels: train step"
    ),
    "features of other nodes": Expected(
        Complaint("inputs", "are not those of node"),
        verify="inputs: train step",
    ),
    "test nodes used for training": Expected(
        Complaint("targets", "nodes of the test split are labelled too"),
        verify="nodes of the test split are labelled too",
    ),
    "evaluated on the training images": Expected(
        Complaint("inputs", "they are of the train split"), verify="inputs: test step"
    ),
    "noise added to the inputs, later in the run": Expected(
        Complaint("inputs", "images differ from the raw data"), verify="inputs: train step"
    ),
    "never reshuffled: each epoch in the order of the first": Expected(
        Complaint("order", "epoch 1 has the order of epoch 0: never shuf"),
        verify="inputs: train step",
    ),
    "not shuffled at all": Expected(
        Complaint("order", "the samples are not those of the epoch's per"),
        verify="inputs: train step",
    ),
    "an order that does not depend on the seed": Expected(
        Complaint("order", "the samples are not those of the epoch's per"),
        verify="inputs: train step",
    ),
    "samples drawn with replacement": Expected(
        Complaint("samples", "seen more than once in an epoch"),
        verify="samples were seen more than once in an epoch",
    ),
    "every replica trains on all of the data": Expected(
        Complaint("samples", "replicas are not sharded"),
        verify="samples were seen more than once in an epoch",
    ),
    "one mini-batch for the whole epoch": Expected(
        Complaint("inputs", "they are those of the step before"), verify="inputs: train step"
    ),
    "a halo one hop short": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="attention in train step",
    ),
    "halo edges lost in the first layer only": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="attention in train step",
    ),
    "an edge counted twice": Expected(
        Complaint("chunks", "edges too many"), verify="attention in train step"
    ),
    "no self-loops": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="attention in train step",
    ),
    "one edge in fifty lost where all ranks read the graph": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="layer 0 of those that use neighbours lacks",
    ),
    "edges turned round where all ranks read the graph": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="layer 0 of those that use neighbours lacks",
    ),
    "edges kept from step to step that each layer cuts out again": Expected(
        Complaint("chunks", "was given edges of an earlier step"),
        verify="was given edges of an earlier step",
    ),
    "the last node of each chunk left out of the loss": Expected(
        Complaint("targets", "differ from the graph's labels"),
        verify="steps the loss that was differentiated is no",
    ),
    "chunks without halo recorded as halo": Expected(
        Complaint("chunks", "layer 0 of those that use neighbours lacks"),
        verify="attention in train step",
    ),
    "GCN's weights by the target's degree alone": Expected(
        Complaint("self-check", "outputs: layer0.convolution "),
        verify="outputs: layer0.convolution",
    ),
    "GraphSAGE's mean counts the node itself": Expected(
        Complaint("self-check", "outputs: layer0.convolution "),
        verify="outputs: layer0.convolution",
    ),
    "a maximum's gradient for every neighbour": Expected(
        Complaint("self-check", "gradients: layer0.convolution "),
        verify="gradients: layer0.convolution",
    ),
    "GraphSAGE's pooling without its ReLU": Expected(
        Complaint("self-check", "outputs: layer0.convolution "),
        verify="outputs: layer0.convolution",
    ),
    "GIN without the node itself": Expected(
        Complaint("self-check", "outputs: layer0.convolution "),
        verify="outputs: layer0.convolution",
    ),
    "dropout's scale left out backward": Expected(
        Complaint("self-check", "gradients: layer0.convolution "),
        verify="gradients: layer0.convolution",
    ),
    "GATv2's leaky ReLU with half its slope": Expected(
        Complaint("self-check", "outputs: layer0.attention "), verify="outputs: layer0.attention"
    ),
    "GCNII's weights of the layer after": Expected(
        Complaint("self-check", "outputs: layer0 "), verify="outputs: layer0"
    ),
    "a residual GCN that forgets its last norm": Expected(
        Complaint("self-check", "outputs: readout "), verify="outputs: readout"
    ),
    "dropout masks used twice: one for all steps": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "dropout masks used twice, later in the run": Expected(
        Complaint("dropout masks", "used the mask of step 4 again"), verify="dropout in train step"
    ),
    "one dropout mask for all layers": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "dropout masks that do not depend on the seed": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "dropout at half its rate": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "kept entries not scaled up": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "no dropout in training": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "dropout in evaluation": Expected(
        Complaint("evaluation", "dropout is active in evaluation"), verify="dropout in test step"
    ),
    "backward through another dropout mask": Expected(
        Complaint("self-check", "gradients: layer0.attention differs"),
        verify="attention differs by",
    ),
    "dropout masks by the row of a chunk": Expected(
        Complaint("self-check", "outputs: layer0.dropout in train step"),
        verify="dropout in train step",
    ),
    "a stage that evaluates in training mode": Expected(
        Complaint("modes", "test step 0: the stage is not in evaluation mode"),
        verify="grapher in test step",
    ),
    "a stage that trains in evaluation mode": Expected(
        Complaint("modes", "train step 0: the stage is not in training mode"),
        verify="grapher in train step",
    ),
    "training goes on in evaluation mode after an evaluation": Expected(
        Complaint("modes", "the stage is not in training mode")
    ),
    "BatchNorm's statistics wrong in evaluation": Expected(
        Complaint("statistics", "is not the mean of those of 1 replicas"),
        verify="evaluation's statistics: block",
    ),
    "running variance without Bessel's correction": Expected(
        Complaint("self-check", "buffers: block0.grapher.norm1.running_var"),
        verify="buffers: block",
    ),
    "running statistics that move too slowly": Expected(
        Complaint("self-check", "buffers: block0.grapher.norm1.running_mean"),
        verify="buffers: block",
    ),
    "running statistics that stand still, later in the run": Expected(
        Complaint("running statistics", "stood still"), verify="buffers: block"
    ),
    "running statistics not averaged over replicas": Expected(
        Complaint("statistics", "is not the mean of those of 2 replicas"),
        verify="evaluation's statistics: block",
    ),
    "BatchNorm with another epsilon": Expected(
        Complaint("self-check", "outputs: block0.grapher in train step 0"),
        verify="grapher in train step",
    ),
    "the first micro-batch's outputs for all in evaluation": Expected(
        Complaint("outputs", "are not what the model's last part gave"),
        verify="are not what the model's last part gave",
    ),
    "evaluation's outputs wrong, later in the run": Expected(
        Complaint("outputs", "are not what the model's last part gave"),
        verify="are not what the model's last part gave",
    ),
    "evaluation that leaves its last micro-batch's labels out": Expected(
        Complaint("metrics", "of the outputs and the raw labels"),
        verify="of the outputs and the raw labels",
    ),
    "accuracy that counts every row twice where it is right": Expected(
        Complaint("metrics", "of the outputs and the raw labels"),
        verify="of the outputs and the raw labels",
    ),
    "evaluation that trains": Expected(
        Complaint("evaluation", "evaluation changed"), verify="evaluation changed"
    ),
    "a stage's parameters of the step before in an evaluation in mid-run": Expected(
        Complaint("evaluation", "are not what the stage gives of the same inputs now"),
        verify="outputs: ",
    ),
    "initial running statistics in an evaluation in mid-run": Expected(
        Complaint("evaluation", "are not what the stage gives of the same inputs now"),
        verify="outputs: ",
    ),
    "a micro-batch evaluated to the outputs of the mini-batch before": Expected(
        Complaint("final-check", "computed again in one process from the final"),
    ),
    "running statistics reset after an evaluation in mid-run": Expected(
        Complaint("continuity", "changed since the step before"),
    ),
    "Adam's state cleared after an evaluation in mid-run": Expected(
        Complaint("continuity", "exp_avg of block"),
    ),
    "parameters shrunk before an evaluation in mid-run": Expected(
        Complaint("continuity", "test step 0: block"),
    ),
    "a layer frozen in mid-run": Expected(
        Complaint("continuity", "began or ceased to train"),
    ),
    "a checkpoint that leaves parameters in half precision": Expected(
        Complaint("failure", "changed since the step before"),
    ),
    "attention's gradient half as large again, later in the run": Expected(
        Complaint("last self-check", "gradients: layer1.attention differs"),
        verify="attention differs by",
    ),
    "attention's output 5 % too large in training, later in the run": Expected(
        Complaint("last self-check", "outputs: layer0.attention in train step"),
        verify="outputs: layer0.attention",
    ),
    "attention's own dropout masks used twice, later in the run": Expected(
        Complaint("last self-check", "outputs: layer0.attention in train step"),
        verify="outputs: layer0.attention",
    ),
    "ELU's gradient three times as large, later in the run": Expected(
        Complaint("last self-check", "gradients: layer1.attention differs"),
        verify="attention differs by",
    ),
    "an FFN's output scaled by 1.01 in training, later in the run": Expected(
        Complaint("last self-check", "outputs: block0.ffn in train step"),
        verify="outputs: block0.ffn",
    ),
    "running statistics that move a tenth as far, later in the run": Expected(
        Complaint("last self-check", "buffers: block0.grapher.norm1.running_mean"),
        verify="buffers: block0.grapher.norm1.running_mean",
    ),
    "gradients summed over torch's replicas, later in the run": Expected(
        Complaint("last self-check", "gradients are 2 times the twin's"),
        verify="gradients are 2 times the twin's",
    ),
    "a layer wrong for the third image and later ones": Expected(
        Complaint("last self-check", "outputs: block0.grapher in train step"),
        verify="outputs: block0.grapher",
    ),
    "a layer's gradient wrong with more than two images": Expected(
        Complaint("last self-check", "gradients: block1.grapher differs"),
        verify="gradients: block1.grapher",
    ),
    "metrics wrong from an evaluation's second mini-batch on": Expected(
        Complaint("metrics", "accuracy is 8 over 8, of the outputs and the raw labels"),
    ),
    "losses halved on the way to the file": Expected(
        Complaint("reported", "is reported as loss"),
    ),
    "test metrics of one replica reported as those of all": Expected(
        Complaint("reported", "test step 0: "),
    ),
    "accuracies higher than counted": Expected(
        Complaint("reported", "is reported as accuracy"),
    ),
    "a final accuracy that no evaluation gave": Expected(
        Complaint("reported", "the result's test_accuracy is 0.99, of the last step"),
    ),
    "a mini-batch evaluated in another's place": Expected(
        Complaint("outputs", "are not what the model's last part gave"),
    ),
    "waiting for data recorded as none": Expected(
        Complaint("step times", "data_s that a second clock did not see"),
        verify="data_s that a second clock did not see",
    ),
    "layer groups under each other's names": Expected(
        Complaint("step times", "a group's seconds that are not those of its layers"),
    ),
    "a peak of memory of one MiB": Expected(
        Complaint("memory", "a peak of memory that cannot be"), verify="a peak of memory that"
    ),
    "a partition takes another micro-batch's edges": Expected(
        Complaint("inputs", "the features at row"), verify="inputs: "
    ),
    "forwards computed again of the first micro-batch, not the last": Expected(
        Complaint("failure", "IndexError"), verify="IndexError"
    ),
    "a micro-batch without a backward under torchgpipe": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin"),
        verify="readout",
    ),
    "a micro-batch without a backward under torchgpipe, later": Expected(
        Complaint("loss gradient", "the backward of micro-batch 3 does not begin"),
        verify="readout",
    ),
    "replicas of torchgpipe that share no gradients": Expected(
        Complaint("replica parameters", "differ between replicas 0 and 1"), verify="replicas: "
    ),
    "dropout drawn anew in a forward computed again": Expected(
        Complaint("self-check", "gradients: layer1.attention"), verify="layer1.attention"
    ),
    "dropout drawn anew in our own forward computed again": Expected(
        Complaint("self-check", "gradients: layer1.attention"), verify="layer1.attention"
    ),
    "running statistics moved again by a forward computed again": Expected(
        Complaint("self-check", "buffers: block0.grapher.norm1"), verify="buffers: block0"
    ),
    "forwards not computed again where they were asked for": Expected(
        Complaint("step times", "computed again otherwise than checkpoint says")
    ),
    "forwards computed again unasked": Expected(
        Complaint("step times", "computed again otherwise than checkpoint says")
    ),
    "torchgpipe told to keep all activations": Expected(
        Complaint("step times", "computed again otherwise than checkpoint says"),
        verify="1 backwards reached",
    ),
    "one chunk where torchgpipe was to make four": Expected(
        Complaint("failure", "ValueError"), verify="ValueError"
    ),
    "time of forwards computed again not told": Expected(
        Complaint("step times", "recompute_s shorter than the forwards computed again")
    ),
    "time of forwards computed again told twice on one stage": Expected(
        Complaint("step times", "recompute_s holds")
    ),
    "every replica draws all nodes of a step": Expected(
        Complaint("order", "replica 1 has the samples of replica 0"),
        verify="samples were seen more than once",
    ),
    "a rank without the last mini-batch of an epoch": Expected(
        Complaint("samples", "samples were not used in an epoch"),
        verify="samples were not used in an epoch",
    ),
    "nodes never shuffled again": Expected(
        Complaint("order", "epoch 1 has the order of epoch 0: never shuffled again"),
        verify="never shuffled again",
    ),
    "the last mini-batch's loss divided by the batch size": Expected(
        Complaint("targets", "the loss is divided by 16, the step has 3 nodes"),
        verify="the loss is divided by 16",
    ),
    "Floyd's last candidate never drawn": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "neighbours drawn by 16 bits modulo their number": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "always the first neighbours": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "one neighbour fewer than the fan-out": Expected(
        Complaint("chunks", "where 3 of its 12 are to be drawn"),
        verify="where 3 of its 12 are to be drawn",
    ),
    "neighbours drawn with replacement unasked": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "the same neighbours in every layer, told as drawn anew": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "the neighbours of the step before": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "an edge that the graph does not have": Expected(
        Complaint("chunks", "rows and numbers are of other edges"),
        verify="rows and numbers are of other edges",
    ),
    "edges by source of another mini-batch's size": Expected(
        Complaint("self-check", "though its output and the layers after it agree"),
        verify="gradients: layer1.convolution",
    ),
    "features kept in half precision, and not told": Expected(
        Complaint("inputs", "are not those of node"), verify="are not those of node"
    ),
    "features told to be kept in half precision, and not": Expected(
        Complaint("inputs", "are not those of node"), verify="are not those of node"
    ),
    "features of the rows beside": Expected(
        Complaint("inputs", "they are shifted"), verify="they are shifted"
    ),
    "labels of other nodes of the mini-batch": Expected(
        Complaint("targets", "labels of micro-batch 0 are not its nodes'"),
        verify="labels of micro-batch 0 are not its nodes'",
    ),
    "a mean over drawn neighbours divided by all": Expected(
        Complaint("self-check", "outputs: layer0.convolution"), verify="outputs: layer0.convolution"
    ),
    "a sampled run evaluated on the validation mask": Expected(
        Complaint("targets", "they are of the val split"), verify="they are of the val split"
    ),
    "drawing a mini-batch left out of its step": Expected(
        Complaint("step times", "data_s that a second clock did not see"), verify="step times"
    ),
    "drawing in advance told in thousands of seconds": Expected(
        Complaint("step times", "sample_s that a second clock did not see"),
        verify="sample_s that a second clock did not see",
    ),
    "one replica draws by another seed": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "a mini-batch delivered twice": Expected(
        Complaint("order", "the samples are those of the step before"),
        verify="the samples are those of the step before",
    ),
    "two mini-batches delivered out of order": Expected(
        Complaint("order", "the samples are not those of the epoch's permutation"),
        verify="the samples are not those of the epoch's permutation",
    ),
    "labels of the other micro-batch": Expected(
        Complaint("targets", "labels of micro-batch 0 are not its nodes'"),
        verify="labels of micro-batch 0 are not its nodes'",
    ),
    "rows of a buffer that the next draw writes to": Expected(
        Complaint("chunks", "its own nodes are not those of the mini-batch"),
        verify="its own nodes are not those of the mini-batch",
    ),
    "two edges by source exchanged, in a buffer used again": Expected(
        Complaint("chunks", "has other edges by source than by target"),
        verify="has other edges by source than by target",
    ),
    "degrees of other rows, in a buffer used again": Expected(
        Complaint("chunks", "the degree of node"), verify="the degree of node"
    ),
    "sampled edges counted twice": Expected(
        Complaint("chunks", "edges are told, its layers have"),
        verify="edges are told, its layers have",
    ),
    "degrees of the sample for those of the graph": Expected(
        Complaint("self-check", "outputs: layer0.convolution"), verify="outputs: layer0.convolution"
    ),
    "a node left out of its mini-batch": Expected(
        Complaint("chunks", "its own nodes are not those of the mini-batch"),
        verify="its own nodes are not those of the mini-batch",
    ),
    "inductive training with the edges of test nodes": Expected(
        Complaint("chunks", "where 1 of its 1 are to be drawn"),
        verify="where 1 of its 1 are to be drawn",
    ),
    "inductive training with edges from nodes to validate": Expected(
        Complaint("chunks", "where 1 of its 1 are to be drawn"),
        verify="where 1 of its 1 are to be drawn",
    ),
    "an evaluation without the edges of test nodes": Expected(
        Complaint("chunks", "has 0 edges into node 0, where 3 of its 23 are to be drawn"),
        verify="has 0 edges into node 0, where 3 of its 23 are to be drawn",
    ),
    "an evaluation whose neighbours are drawn anew": Expected(
        Complaint("chunks", "has other neighbours of node"), verify="has other neighbours of node"
    ),
    "an evaluation of the easiest half of its nodes": Expected(
        Complaint("chunks", "not this replica's of those to validate and to test"),
        verify="not this replica's of those to validate and to test",
    ),
    "every replica evaluates the same part of the graph": Expected(
        Complaint("chunks", "100 are evaluated by several replicas, and 100 by none"),
        verify="100 are evaluated by several replicas, and 100 by none",
    ),
    "an evaluation counted by twice its nodes": Expected(
        Complaint("chunks", "its samples are not this replica's of those to validate"),
        verify="its samples are not this replica's of those to validate",
    ),
    "mini-batches drawn in advance between steps too": Expected(
        Complaint("draws", "steps and waits for them"),
    ),
    "hidden rows that do not reach the other replica": Expected(
        Complaint("final-check", "layer0.convolution in micro-batch 0 on rank"),
    ),
    "hidden rows of the nodes beside": Expected(
        Complaint("final-check", "layer0.convolution in micro-batch 0 on rank"),
    ),
    "later micro-batches evaluated as the first numbers nodes": Expected(
        Complaint("final-check", "layer0.convolution in micro-batch 1 on rank"),
    ),
    "neighbours drawn where all were to be evaluated": Expected(
        Complaint("final-check", "layer0.convolution in micro-batch 0 on rank"),
    ),
    "gradients of the last rows of large tensors lost": Expected(
        Complaint("slope", "changes along its gradient by"),
        verify="and the layers after it agree",
    ),
    "a gradient with zeros where tensors are large": Expected(
        Complaint("slope", "changes in a random direction otherwise by"),
        verify="and the layers after it agree",
    ),
    "the last rows of large tensors zero in training": Expected(
        Complaint("training outputs", "computed again in one process from the final parameters"),
        verify="layer1.activation in train step 0",
    ),
    "a last layer's bias without a gradient where tensors are large": Expected(
        Complaint("slope", "changes in a random direction otherwise by"),
        verify="and the layers after it agree",
    ),
    "links that a step predicts left in its sample": Expected(
        Complaint("chunks", "which the step predicts"), verify="which the step predicts"
    ),
    "one direction alone of the links that a step predicts left out": Expected(
        Complaint("chunks", "which the step predicts"), verify="which the step predicts"
    ),
    "a replica's own links alone left out of its sample": Expected(
        Complaint("chunks", "which the step predicts"), verify="which the step predicts"
    ),
    "links to validate in the graph that is learnt from": Expected(
        Complaint("chunks", "which is judged"), verify="which is judged"
    ),
    "negatives that may be links": Expected(
        Complaint("targets", "negatives of micro-batch 0 are links"),
        verify="negatives of micro-batch 0 are links",
    ),
    "negatives by 16 bits modulo the nodes": Expected(
        Complaint("targets", "negatives of micro-batch 0 are not those"),
        verify="negatives of micro-batch 0 are not those",
    ),
    "the same negatives in every step": Expected(
        Complaint("targets", "negatives of micro-batch 0 are not those"),
        verify="negatives of micro-batch 0 are not those",
    ),
    "negatives numbered from each replica's first link": Expected(
        Complaint("targets", "negatives of micro-batch 0 are not those"),
        verify="negatives of micro-batch 0 are not those",
    ),
    "every replica learns all links of a step": Expected(
        Complaint("order", "replica 1 has the samples of replica 0"),
        verify="replica 1 has the samples of replica 0",
    ),
    "links labelled as none, and negatives as links": Expected(
        Complaint("targets", "labels of micro-batch 0 are not its pairs'"),
        verify="labels of micro-batch 0 are not its pairs'",
    ),
    "the last link of each mini-batch left out": Expected(
        Complaint("order", "the samples are not those of the epoch's permutation"),
        verify="the samples are not those of the epoch's permutation",
    ),
    "the loss of links divided by the links alone": Expected(
        Complaint("targets", "the loss is divided by 150"), verify="the loss is divided by 150"
    ),
    "links to test judged by those to validate": Expected(
        Complaint("targets", "they are of the val split"), verify="they are of the val split"
    ),
    "the validation AUC told as that of the test": Expected(
        Complaint("metrics", "test_auc is"), verify="test_auc is"
    ),
    "hits above the negative of the next rank": Expected(
        Complaint("metrics", "hits@3 is"), verify="hits@3 is"
    ),
    "a pool drawn from all pairs of nodes": Expected(
        Complaint("targets", "links or their pool are others"),
        verify="links or their pool are others",
    ),
    "links judged by the embeddings of other nodes": Expected(
        Complaint("chunks", "has other nodes than its links and their pool"),
        verify="has other nodes than its links and their pool",
    ),
    "every replica counts all judged links as its own": Expected(
        Complaint("chunks", "its samples are not this replica's of the links to validate"),
        verify="its samples are not this replica's of the links to validate",
    ),
    "edges that point into the next graph": Expected(
        Complaint("chunks", "has edges between graph number"), verify="has edges between graph"
    ),
    "the edges of a mini-batch's last graph left out": Expected(
        Complaint("chunks", "edges of graph number 15 of the micro-batch, not"),
        verify="edges of graph number 15",
    ),
    "a mean over nodes divided by the mean size of the graphs": Expected(
        Complaint("self-check", "outputs: readout.pooling"), verify="outputs: readout.pooling"
    ),
    "nodes pooled to the graph beside their own": Expected(
        Complaint("chunks", "it pools other nodes than those of each graph"),
        verify="it pools other nodes",
    ),
    "the labels of the graphs beside": Expected(
        Complaint("targets", "labels of the train split are not the graphs'"),
        verify="labels of the train split are not the graphs'",
    ),
    "the features of the nodes of another graph": Expected(
        Complaint("inputs", "are not those of node"), verify="are not those of node"
    ),
    "a mini-batch without its last graph": Expected(
        Complaint("samples", "samples were not used in an epoch"),
        verify="samples were not used in an epoch",
    ),
    "every replica trains on all graphs of a step": Expected(
        Complaint("order", "replica 1 has the samples of replica 0"),
        verify="samples were seen more than once",
    ),
    "graphs to validate are trained on": Expected(
        Complaint("chunks", "its graphs are not those of the mini-batch"),
        verify="its graphs are not those of the mini-batch",
    ),
    "validation reported as the test": Expected(
        Complaint("targets", "they are those of the val split"),
        verify="they are those of the val split",
    ),
    "an evaluation without its last micro-batch": Expected(
        Complaint("chunks", "its graphs are not those of the mini-batch"),
        verify="its graphs are not those of the mini-batch",
    ),
    "the loss divided by the batch size at an epoch's end": Expected(
        Complaint("targets", "the loss is divided by 16, the step has 8 graphs"),
        verify="the loss is divided by 16",
    ),
    "a split drawn anew in each process": Expected(
        Complaint("chunks", "its graphs are not those of the mini-batch"),
        verify="its graphs are not those of the mini-batch",
    ),
    "dropout masks by a node's row, not its number": Expected(
        Complaint("dropout masks", "did not use the mask of its step"),
        verify="outputs: layer0.activation",
    ),
    "every replica counts all evaluated graphs as its own": Expected(
        Complaint("chunks", "its samples are not this replica's of those to validate"),
        verify="its samples are not this replica's of those to validate",
    ),
    "a step time that leaves the backward out": Expected(
        Complaint("step times", "it leaves the backward out"), verify="step times: rank"
    ),
    "a clock at half speed": Expected(
        Complaint("step times", "of a second clock"), verify="step times: rank"
    ),
    "step times in milliseconds": Expected(
        Complaint("step times", "steps were recorded as 0.001 of the"), verify="step times: rank"
    ),
    "step times shorter by a few hundredths": Expected(
        Complaint("step times", "of the time between their barriers"), verify="step times: rank"
    ),
    "step times longer by a few hundredths": Expected(
        Complaint("step times", "steps recorded as longer than they were"),
        verify="step times: rank",
    ),
    "forwards shorter by a few hundredths in the record": Expected(
        Complaint("step times", "forward_s that is not the sum of its spans"),
        verify="step times: rank",
    ),
    "outliers replaced by the median, in silence": Expected(
        Complaint("step times", "of the time between their barriers"), verify="step times: rank"
    ),
    "the clock stopped before the last stage is done": Expected(
        Complaint("step times", "of the time between their barriers"), verify="step times: rank"
    ),
    "the optimizer's step outside the measured time": Expected(
        Complaint("step times", "1 optimizer step before train step"), verify="optimizer: rank"
    ),
    "a negative step time": Expected(
        Complaint("step times", "a length that no step has"), verify="a length that no step has in"
    ),
    "a step time that is no number": Expected(
        Complaint("step times", "a length that no step has"), verify="a length that no step has in"
    ),
    "step times halved on the way to the file": Expected(
        Complaint("records", "s of steps, rank 0 measured")
    ),
    "slow steps recorded as looked at, so that they do not count": Expected(
        Complaint("step times", "looked recorded otherwise than it was"),
    ),
    "throughput of twice the samples": Expected(
        Complaint("throughput", "16 samples a step are told")
    ),
    "throughput of the samples that two replicas share": Expected(
        Complaint("throughput", "a number of samples that the batch does not have")
    ),
    "no barrier at the end of a step": Expected(
        Complaint("step times", "no barrier at the end in")
    ),
    "barriers that do not wait": Expected(
        Complaint("step times", "left a barrier before another rank had come to it"),
        verify="step times: rank",
    ),
    "replicas' barriers that do not wait": Expected(
        Complaint("step times", "left a barrier before another rank had come to it"),
        verify="step times: rank",
    ),
    "barriers that do not wait, of ranks on two systems": Expected(
        Complaint("step times", "a barrier that one of two ranks left before the other had come"),
        verify="step times: rank",
    ),
    "barriers around drawing that do not wait": Expected(
        Complaint("step times", "left a barrier before another rank had come to it"),
        verify="step times: rank",
    ),
    "the best evaluation reported as the last": Expected(
        Complaint("reported", "the result's test_loss is")
    ),
    "waiting booked as forward": Expected(
        Complaint("step times", "cpu_s that is not the sum of its spans"),
    ),
    "waiting before the loss goes back booked as backward": Expected(
        Complaint("spans", "backward spans of", "suspect"),
    ),
    "waiting for the last rank booked as optimizer": Expected(
        Complaint("spans", "of which the optimizer took", "suspect"),
    ),
    "half of the backwards booked as waiting": Expected(
        Complaint("step times", "in no backward span")
    ),
    "warm-up steps measured": Expected(Complaint("records", "has warmup False, measured was True")),
    "the clock started before the ranks have met": Expected(
        Complaint("step times", "the clock ran before the first"),
        verify="the clock ran before the first",
    ),
    "no barrier at the beginning of a step": Expected(
        Complaint("step times", "no barrier at the beginning in"),
        verify="barriers that were not looked at",
    ),
    "the optimizer in no span": Expected(
        Complaint("step times", "an optimizer's step in no optimizer span"),
    ),
    "the all-reduce in no span": Expected(
        Complaint("step times", "gradients shared in no all-reduce span"),
    ),
    "the all-reduce of torch's replicas in no span": Expected(
        Complaint("step times", "gradients shared in no all-reduce span"),
    ),
    "waiting for a later replica booked as all-reduce": Expected(
        Complaint("spans", "before the last replica's gradients were ready", "suspect"),
        verify="allreduce_s that does not begin with its stage's last replica",
    ),
    "all-reduces counted from the last arrival of all stages": Expected(
        Complaint("step times", "allreduce_s that does not begin with its stage's last replica in"),
        verify="step times: rank",
    ),
    "waiting for a gradient booked as backward": Expected(
        Complaint("spans", "backward spans of", "suspect"),
    ),
    "waiting after a stage has computed booked as forward": Expected(
        Complaint("spans", "after its stage had computed", "suspect")
    ),
    "waiting after the loss booked as forward": Expected(
        Complaint("spans", "after its stage had computed", "suspect")
    ),
    "waiting after a stage has gone back booked as backward": Expected(
        Complaint("spans", "after its stage had computed", "suspect")
    ),
    "waiting after the first stage has gone back booked as backward": Expected(
        Complaint("spans", "after its stage had computed", "suspect")
    ),
    "each layer's forward counted from where the stage began": Expected(
        Complaint("step times", "layers whose forward is longer than the stage's"),
    ),
    "each layer's forward told as that of the next": Expected(
        Complaint("step times", "forward seconds of layers that these did not take"),
    ),
    "the end of a micro-batch's backward not marked": Expected(
        Complaint("step times", "layers whose backward is longer than the stage's"),
    ),
    "processor time of more threads than the process has": Expected(
        Complaint("step times", "more processor time than the process used"),
        verify="more processor time than the process",
    ),
    "half of the computing threads' processor time": Expected(
        Complaint("step times", "less processor time of the computing threads than the engine's"),
        verify="less processor time of the computing threads than the engine's",
    ),
    "the process's clock read for the computing thread's": Expected(
        Complaint("step times", "more processor time of the computing thread than it used"),
        verify="more processor time of the computing thread than it used",
    ),
    "processor time twice, that of other threads less than none": Expected(
        Complaint("step times", "processor time of other threads that is less than none"),
        verify="processor time of other threads that is less than none",
    ),
    "processor time of waiting told as computing's": Expected(
        Complaint("step times", "cpu_s that is not the sum of its spans"),
        verify="cpu_s that is not the sum of its spans",
    ),
    "time on a processor told as waiting for one": Expected(
        Complaint("step times", "another run_delay_s than the computing thread had"),
        verify="another run_delay_s than the computing thread had",
    ),
    "waiting for a processor not told": Expected(
        Complaint("step times", "no run_delay_s where the system says it"),
        verify="no run_delay_s where the system says it",
    ),
    "a second of waiting for a processor in each span": Expected(
        Complaint("step times", "a span's waiting for a processor that its thread had"),
        verify="a span's waiting for a processor that its thread had",
    ),
    "time on a processor told as a span's waiting for one": Expected(
        Complaint("step times", "a span's waiting for a processor that its thread had"),
        verify="a span's waiting for a processor that its thread had",
    ),
    "all switches told as involuntary": Expected(
        Complaint("step times", "other involuntary switches than the process had"),
        verify="other involuntary switches than the process had",
    ),
    "a tenth of each step told as taken by the host": Expected(
        Complaint("step times", "another steal_s than the host took"),
        verify="another steal_s than the host took",
    ),
    "half of the processor time in the record": Expected(
        Complaint("step times", "cpu_s recorded otherwise than measured"),
        verify="cpu_s recorded otherwise than measured",
    ),
    "the native engine where torch's is told": Expected(
        Complaint("engine", "ran the native engine, pipelining was asked for"),
    ),
    "GPipe where 1F1B is told": Expected(
        Complaint("engine", "forwards before its first backward, 1f1b has"),
    ),
    "another balance told than was cut": Expected(
        Complaint("told", "balance [1, 1] is told"),
    ),
    "other hosts told than ranks ran on": Expected(
        Complaint("told", "ranks' hosts ['elsewhere', 'elsewhere'] are told"),
    ),
    "another version of torch told than is loaded": Expected(
        Complaint("told", "had loaded 1.0.0"),
    ),
    "evaluations in mid-run left out": Expected(
        Complaint("reported", "test step 0 was planned"),
    ),
    "an evaluation by the parameters of the step before": Expected(
        Complaint("evaluation", "are not what the stage gives of the same inputs now"),
        verify="outputs: ",
    ),
    "samples that count padding": Expected(
        Complaint("throughput", "a number of samples that the batch does not have"),
    ),
    "redundancy that counts padding": Expected(
        Complaint("graph", "node_redundancy is told as"),
        verify="node_redundancy is told as",
    ),
    "self-loops counted among the edges kept": Expected(
        Complaint("graph", "edges_kept is told as"),
        verify="edges_kept is told as",
    ),
    "both directions of each edge counted again, of many graphs": Expected(
        Complaint("graph", "edges is told as"),
        verify="edges is told as",
    ),
    "drawn edges recorded twice": Expected(
        Complaint("step times", "sampled_edges that were not drawn"),
        verify="sampled_edges that were not drawn",
    ),
    "all steps recorded as of the first epoch": Expected(
        Complaint("throughput", "an epoch that is not the step's"),
    ),
    "the gradient's norm of few parameters": Expected(
        Complaint("gradient norm", "the gradient's norm is recorded as"),
        verify="norm is recorded as",
    ),
    "seconds rounded to milliseconds in the file": Expected(
        Complaint("records", "measured was"),
    ),
    "spans twice as long in the file": Expected(
        Complaint("records", "has the span"),
    ),
    "virtual memory recorded as the peak of resident": Expected(
        Complaint("memory", "a peak of memory that cannot be"),
        verify="a peak of memory that",
    ),
    "the self-check's peak of memory told as the steps'": Expected(
        Complaint("memory", "hold what the self-check needed", "suspect"),
    ),
    "torch's anomaly detection left on": Expected(
        Complaint("slowed", "torch's anomaly detection", "suspect"),
    ),
    "memory traced by Python": Expected(Complaint("slowed", "a trace of memory", "suspect")),
    "torch's profiler left on": Expected(Complaint("slowed", "torch's profiler", "suspect")),
    "operations dispatched by a mode": Expected(
        Complaint("slowed", "a mode that torch dispatches by", "suspect"),
    ),
    "fused layers under the name of the reference": Expected(
        Complaint("kernels", "says reference and called"),
        verify="says reference and called",
    ),
    "reference layers under the name of the fused ones": Expected(
        Complaint("kernels", "and called no kernel"),
        verify="and called no kernel",
    ),
    "another schedule told than the one that ran": Expected(
        Complaint("told", "schedule gpipe is told, 1f1b ran"),
    ),
    "more threads told than ranks had": Expected(
        Complaint("told", "threads 16 is told, 1 ran"),
    ),
    "more threads told of each rank than it had": Expected(
        Complaint("told", "threads 16 are told of rank 0, it had 1"),
    ),
    "shared memory told where tensors went by gloo": Expected(
        Complaint("told", "by shared memory are told, 96 went by process group"),
    ),
    "gloo told where tensors went through memory": Expected(
        Complaint("told", "by gloo are told, 96 went by shared memory"),
    ),
    "one thread where two are recorded": Expected(
        Complaint("threads", "ran 1 threads from train step 0 on"), verify="threads: rank"
    ),
    "one thread from the start where two are asked for": Expected(
        Complaint("threads", "were asked for"), verify="threads: rank"
    ),
    "a rank pinned to one CPU while it trains": Expected(
        Complaint("affinity", "had fewer CPUs than before", "suspect")
    ),
    "one rank without a compiler": Expected(
        Complaint("kernels", "ranks computed by different code: fu"),
        verify="kernels: ranks computed by different code: f",
    ),
    "other kernels than recorded, later in the run": Expected(
        Complaint("kernels", "called otherwise than in the first"),
        verify="kernels called otherwise than in the first t",
    ),
    "a kernel that is wrong in the third digit": Expected(
        Complaint("self-check", "outputs: block0.ffn in train step 0"),
        verify="ffn in train step",
    ),
    "a kernel's backward wrong in one parameter": Expected(
        Complaint("self-check", "gradients: block"), verify="gradients: block"
    ),
    "a rank that runs other code": Expected(Complaint("failure", " runs other code (")),
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
        Complaint("unlike", "implementation fused/torch beside fused/c++", "suspect")
    ),
    "a repeat whose losses leave the others'": Expected(
        Complaint("siblings", "training loss of step 0 is")
    ),
    "a checkpoint with one bit changed": Expected(Complaint("checkpoint", "skipped")),
    "a checkpoint of another cell": Expected(Complaint("checkpoint", "skipped")),
    "a checkpoint with another cell's tensors": Expected(
        Complaint("failure", "are not as they were when it was written")
    ),
    "a checkpoint that says a later step": Expected(Complaint("checkpoint", "skipped")),
    "a checkpoint of other code": Expected(Complaint("checkpoint", "skipped")),
    "Adam's moments lost at a resume": Expected(Complaint("failure", "optimizer's exp_avg of")),
    "BatchNorm's statistics lost at a resume": Expected(Complaint("failure", ": buffer block")),
    "the order of the data begun anew at a resume": Expected(
        Complaint("failure", "the samples are not those of the epoch's")
    ),
    "generators set otherwise at a resume": Expected(
        Complaint("failure", "are not as they were when it was written")
    ),
    "a stage that is not restored at a resume": Expected(
        Complaint("failure", "parameter block1.ffn.fc1.weight")
    ),
    "a stage's parts exchanged at a resume": Expected(
        Complaint("failure", "parameter block0.grapher.")
    ),
    "a negative step time in a record": Expected(Complaint("reader", "wall_s: found -1.0")),
    "a warm-up step counted as measured": Expected(Complaint("reader", "warmup: found False")),
    "a step time of zero in a record": Expected(Complaint("reader", "wall_s: found 0.0")),
    "a step time that is no number in a record": Expected(Complaint("reader", "wall_s: found nan")),
    "a record that lost its step time": Expected(Complaint("reader", "wall_s: found nan")),
    "a start stamp from before the step before": Expected(
        Complaint("reader", "start_s: found 0.0")
    ),
    "step times halved by hand in one rank's records": Expected(
        Complaint("reader", "wait_s: found ")
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
    "a result cut short": Expected(Complaint("reader", "damaged JSON")),
    "an accuracy changed by hand in a result": Expected(
        Complaint("reader", "content: found changed since it was written")
    ),
    "a result with another accuracy than its records": Expected(
        Complaint("reader", "final.test_accuracy: found 0.99")
    ),
    "a result of other settings than the cell's": Expected(
        Complaint("reader", "microbatches: found 2")
    ),
}
