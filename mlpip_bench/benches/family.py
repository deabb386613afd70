"""The interface of a task family: a data set, or a model, and the few-shot tasks that are made of it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mlpip_bench.benches.spec import BenchSpec, read_name
from mlpip_bench.utils.choices import SourceChoice
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.provenance import Source
from mlpip_bench.utils.settings import NoSettings

if TYPE_CHECKING:  # families are listed without torch
    import torch

    from mlpip_bench.datasets.pictures import PictureForm
    from mlpip_bench.evaluation.metrics import Metric
    from mlpip_bench.inference.method import TaskKind, TrainingPlan
    from mlpip_bench.tasks.kernels import Kernel
    from mlpip_bench.tasks.stream import Stream

PRESETS = ("quick", "paper")
"""Budgets."""

TEST_QUERIES = 15
"""Queries per class at test, unless ``--queries`` says otherwise; the paper's protocol is the shot."""


class TaskSource(Protocol):
    """What tasks are made of: a data set, or a model that is known.

    Attributes:
        name: what it is, for example ``omniglot``.
        source: ``real``, or what else it is.
        fingerprint: equal data, equal fingerprint.
        options: the settings that made it, as plain JSON values.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> Source: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def options(self) -> Mapping[str, Any]: ...  # noqa: D102


@dataclass(frozen=True)
class DataRequest:
    """Where data may come from.

    Attributes:
        choice: real data where it is found, else the stand-in; or one of the two.
        data_root: folder below which real data is looked for.
        reporter: shows what takes long.
    """

    choice: SourceChoice = "auto"
    data_root: Path | None = None
    reporter: Reporter = field(default_factory=Quiet)


class TaskFamily(abc.ABC):
    """A data set, or a model, as benches use it.

    A plugin subclasses this and registers an entry point in the group ``mlpip_bench.benches``, whose name is what
    names of its benches begin with: letters and hyphens; with digits in it, ``naming`` begins with a hyphen.

    Args:
        options: an instance of ``Options``.

    Attributes:
        title: its full name.
        needs: what must be there for a run on real data.
        examples: benches that are listed.
        naming: what follows the family's name in a bench's: ``way``, ``shot`` and other fields in braces.
        way, shot: of its benches where their names do not say.
        ranges: fields of the name that may be a range, of which each task then has a number of its own.
        image_shape: of its images, where that is known without any; None where only the data say it.
        kind: what its tasks are.
        noise_std: of the targets given psi, a pixel's in reconstruction; None for classification. A class sets it, or
            an instance where it is an option.
        budgets: fields of the training plan by preset, the same for every method unless the method's own preset
            says otherwise.
        default_methods: methods that a run enters where none is named.
        backbone: registered name of the network that its methods share unless a user chooses another.
        backbone_settings: that network's settings here.
        Options: frozen dataclass of the family's own options (``--data FAMILY.OPTION=VALUE``), with defaults.
    """

    title: ClassVar[str]
    needs: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    naming: ClassVar[str] = "{way}w{shot}s"
    way: ClassVar[int] = 1
    shot: ClassVar[int] = 0
    ranges: ClassVar[tuple[str, ...]] = ()
    image_shape: ClassVar[tuple[int, int, int] | None] = None
    kind: ClassVar[TaskKind] = "classification"
    noise_std: float | None = None
    budgets: ClassVar[Mapping[str, Mapping[str, Any]]]
    default_methods: ClassVar[tuple[str, ...]] = ()
    backbone: ClassVar[str] = "conv4"
    backbone_settings: ClassVar[Mapping[str, Any]] = {}
    Options: ClassVar[type] = NoSettings

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def read_name(cls, name: str) -> BenchSpec | None:
        """What a bench's name says; None where it is not of this family's form."""
        return read_name(name, cls.naming, {"way": cls.way, "shot": cls.shot}, cls.ranges)

    @classmethod
    def settings_of_backbone(cls, bench: BenchSpec) -> Mapping[str, Any]:  # noqa: ARG003  # for those that override it
        """Settings of the family's own backbone on a bench."""
        return cls.backbone_settings

    @abc.abstractmethod
    def load(self, request: DataRequest) -> TaskSource:
        """What tasks are made of; images need not be read before a task asks for them.

        Raises:
            UserError: it is not there, or is broken.
        """

    @abc.abstractmethod
    def input_shape(self, data: TaskSource) -> tuple[int, int, int]:
        """Of what the backbone takes: ``(channel, height, width)``, or ``(dimension, 1, 1)``."""

    @abc.abstractmethod
    def streams(
        self,
        bench: BenchSpec,
        data: TaskSource,
        plan: TrainingPlan,
        *,
        queries: int,
        seed: int,
        device: torch.device,
    ) -> dict[str, Stream]:
        """The task streams ``train``, ``validation`` and ``test``; no seed of theirs names the method.

        Validation and test tasks are the same for all training seeds too, so seeds can be compared task by task.

        Args:
            bench: says what tasks are.
            data: what they are made of, from :meth:`load`.
            plan: says how many queries a training task has.
            queries: per class at test.
            seed: training seed.
            device: where tensors are.

        Raises:
            UserError: tasks that the data cannot give; no image is read to find out.
        """

    def fitted(self, plan: TrainingPlan, bench: BenchSpec, data: TaskSource) -> TrainingPlan:  # noqa: ARG002
        """The plan, with no more tasks and queries than there are where there are only so many."""
        return plan

    def picture_form(self, data: TaskSource, shape: tuple[int, int, int]) -> PictureForm:  # noqa: ARG002
        """How a user's pictures become images of a model that was trained on this data.

        Args:
            data: what the model was trained on, which need not be at hand: its images may not be asked for.
            shape: of the model's images, ``(channel, height, width)``.
        """
        from mlpip_bench.datasets.pictures import photographs

        return photographs(shape)

    def queries_at_test(self, asked: int) -> int:
        """Queries per class at test, where so many are asked for."""
        return asked

    def training_classes(self, data: TaskSource) -> int | None:  # noqa: ARG002  # for those that override it
        """How many classes the training tasks are cut out of; None where they are not cut out of classes."""
        return None

    def test_classes(self, data: TaskSource) -> int | None:  # noqa: ARG002  # for those that override it
        """How many classes the test tasks are drawn from; None where they are not drawn from classes."""
        return None

    @property
    def inputs(self) -> int:
        """Length of the vector x in reconstruction; else 0, since x is then what the backbone takes."""
        return 0

    @property
    def kernel(self) -> Kernel | None:
        """Covariance of the functions that tasks of regression are drawn from, where they are a Gaussian process."""
        return None

    @property
    def task_options(self) -> Mapping[str, Any]:
        """Options that shape tasks and not the data, as plain JSON values by name; they are part of a record's data."""
        return {}

    @property
    def validation_metrics(self) -> tuple[Metric, ...]:
        """What validation measures; the first metric chooses the best model."""
        from mlpip_bench.evaluation.metrics import VALIDATION

        return VALIDATION[self.kind]
