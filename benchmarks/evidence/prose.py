"""What the evidence page says between its tables. What compares recorded figures is made from them, in `verdicts`."""

PROTOCOL = """
The protocol of the gradient-filtering paper (section 5.1): a data set in two highly non-i.i.d. halves of the same
size, pretraining on one, fine-tuning of the last layers on the other. Fashion-MNIST is halved by class. Half A has
trousers, sandals, sneakers, bags and ankle boots, half B T-shirts, pullovers, dresses, coats and shirts, which are
harder to tell apart; no class is in both. Each network is pretrained once, in PyTorch, on {pretrain_images} images of
half A: every parameter, {pretrain_epochs} epochs. The classes of half B are new, so a new classifier is first trained
alone, in PyTorch, {epochs} epochs on {images} images of half B at a rate of {classifier_rate:g}: what all methods start
from. Then the compiled step (`gfcompile.compile`, target native) fine-tunes the last N convolutions and the classifier
on {images} images of half B: batches of {batch}, {epochs} epochs, SGD with momentum {momentum:g}, one learning rate
along half a cosine, batch norms frozen. A seed draws the {images} images from half B's training images, their order,
and the channels of sparse updates; all methods start from the same weights and, by seed, see the same batches. So the
spread is that of training data and order; that of pretraining is not in it. Accuracy is of the compiled step's
predictions on half B's {test} test images; ± is the standard deviation over {seed_count} seeds.

*Sparse* methods update at most {share:.0%} of the network's convolution weights a step, the same share of input
channels in each of the last {layers} convolutions: fixed draws them once, dynamic anew every step, with the same
memory. In a run's {steps} steps dynamic draws a channel {visits} times in the mean; two rows have {longer} times as
many epochs, at the rate of the short runs. No other method was trained longer, so these two compare with each other
only. *Classifier only* trains no convolution: what the others reach above it is the work of the convolutions.

For comparison, the paper's Table 2 on ImageNet, last 4 layers: ResNet-18 72.3 % exact and 68.5 % with r=2,
MobileNetV2 62.2 % and 63.4 %.
""".strip()

METHODS = """
Last {layers} convolutions, batch of {batch}. *Counted*: MFLOPs an image (the backward pass of the trained
convolutions by the paper's equations, and what filtering adds to the forward pass), bytes that cross from forward to
backward, the arena of the whole library. *Measured*: accuracy; the time of a step on all cores, methods in processes
of their own that take turns, and how many times faster than exact with the spread of the rounds; the SNR of the
step's weight gradients against PyTorch's exact ones, mean over the convolutions and over the beginnings of the
epochs.
""".strip()

COST = """
After the paper's Figure 4: accuracy over computation, MFLOPs in brackets below; numbers beside the points say how
many convolutions are trained, bars are the standard deviation over seeds.
""".strip()

SNR = """
After the paper's Figure 5: accuracy over the noise of the gradients, last {layers} convolutions. Small marks are
seeds. A sparse gradient is exact where it is not zero, and its SNR counts all that it leaves out.
""".strip()

CHOSEN = """
Learning rates: each method's own, by one rule. From a seed that no run has, every method is fine-tuned with each of
four rates at the last {layers} convolutions, and with up to {further_rates} more beyond an end of the list while the
best is there; the best on {validation} validation images of half B (training images that are used for nothing else) is
taken for all seeds and depths.

Before seeing a result: the numbers of images and epochs follow from the time that the evidence may take, the share of
{share:.0%} from the paper on dynamic sparse updates, N and r from the gradient-filtering paper, the half with the
garments from their being harder.

After seeing a result, 1: a first trial, one seed on validation images, had no momentum and kept the old classifier.
Exact training reached 59 % (ResNet) and 66 % (MobileNetV2) at best, the classifier alone 63 % on both: the comparison
would have shown nothing. r=2 ran in that trial at rates of 0.3 and more only, and reached 65 % on MobileNetV2 and
chance on the ResNet. Then momentum with a new classifier (73 % exact, 61 % classifier only) and images of the other
half's classes in the pretraining (75 % and 71 %) were tried with these two methods on the ResNet, and the former was
kept, because it leaves the convolutions more to do.

After seeing a result, 2: when the rates were chosen, dynamic lay behind fixed on validation images of the ResNet
(67.8 % against 73.1 %). A channel that is not drawn keeps its momentum until it is drawn again, so dynamic applies
momentum late. Therefore two rows without momentum were added.

After seeing a result, 3: then, too, the best of the four rates was the largest for the classifier alone (both
networks) and for fixed sparse updates (ResNet), the smallest for r=4 (ResNet). Therefore a list goes on where its
best rate is at an end, for every method.

After seeing a result, 4: the first whole comparison (below, with its test accuracies) began with a new, untrained
classifier. A new classifier wants a rate of 0.3 to 1, which the convolutions of most methods do not bear: r=4, r=7 and
dynamic sparse updates of the ResNet ended below the classifier alone, and what was compared was in part how far the
classifier came. Therefore the classifier is now trained first, alone, at 0.3, and everything was run again. (In the
paper both halves have the same classes, so there, too, the classifier is trained before.) The rows without momentum,
where dynamic had not beaten fixed by more than 0.1 points, made room for the ones with {longer} times as many epochs,
to see whether dynamic lacks visits. This was decided before a figure of the second run was seen.

Further, since the first trial: the list of rates was set after it, and each network is
pretrained once and not once a seed, to keep to the time. Nothing else was changed, added or left out. Test images had
no part in the choice of a rate; they had one in the fourth change.
""".strip()

NEW_CLASSIFIER = """
The first comparison, 17 November 2026, test accuracy over seeds 1, 2, 3: as above, but the classifier began untrained,
together with the convolutions. It was stopped for the second while the other depths ran, which are not shown. Without
momentum one of the ResNet's three dynamic runs diverged. Exact training came further there than above: a new classifier
bears a larger rate than a trained one.
""".strip()
