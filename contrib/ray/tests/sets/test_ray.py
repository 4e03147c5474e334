"""A task set on a Ray cluster: two nodes with two executors each."""

import pytest

pytest.importorskip("ray", reason="what `make test-ray` installs")

from gpud_ray.local_cluster import local_cluster
from gpud_ray.sets.generate import random_set
from gpud_ray.sets.model import Task
from gpud_ray.sets.run.nodes import started_on_ray
from gpud_ray.sets.setfile import Program, SetTask, TaskSet


def test_a_set_runs_on_all_nodes_of_a_cluster() -> None:
    bad = SetTask(Task(20, 1), Program("executable", "/bin/false"), "bad")
    tasks = TaskSet([*random_set(20, seed=5).tasks, bad])
    with (
        local_cluster(("cpu:1", "cpu:1"), ("cpu:1", "cpu:1")),
        started_on_ray(tasks) as scheduler,
    ):
        run = scheduler.run()
    states = [one.state for _, one in sorted(run.ended.items())]
    assert states == ["done"] * 20 + ["failed"]
    assert len({one.node for one in run.ended.values()}) == 2
    assert {one.gpu for one in run.ended.values()} == {0, 1, 2, 3}
    assert run.ended[20].tries == 3
