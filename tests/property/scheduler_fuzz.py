"""Long random histories for the scheduler, from a seed: quicker than Hypothesis, without shrinking.

python -m tests.property.scheduler_fuzz [SEEDS] [EVENTS]
"""

from __future__ import annotations

import random
import sys
from fractions import Fraction

from gpud.core.events import LaunchShape
from gpud.core.scheduler import Scheduler, Settings
from gpud.units import JobId
from tests.property.scheduler_simulation import World

OCCUPANCIES = (1, 2, 3, 4, 5, 7, 8, 16, 32, 48)
SHARES = tuple(Fraction(n, d) for d in (1, 2, 3, 7, 8) for n in range(1, 5 * d, 2))


def history(
    seed: int,
    events: int,
    settings: Settings | None = None,
    world: World | None = None,
    changes: float = 0,
) -> World:
    """A simulation after about ``events`` events, with all jobs ended and properties checked.

    Before so large a part of them, ``changes``, settings are changed.
    """
    draw = random.Random(seed)
    if world is None:
        world = World(Scheduler(settings or random_settings(draw)))
    for device in range(draw.choice((1, 1, 2, 3))):
        world.device_up(device, draw.choice((1, 2, 4, 8)))
    world.open()
    while world.events < events:
        if changes and draw.random() < changes:
            world.change_times(draw.choice((0, 50)), draw.choice((20, 50)))
        step(world, draw)
        if draw.random() < 0.01:
            world.come_to_rest()
    world.finish()
    return world


def lane_history(seed: int, events: int, world: World | None = None) -> World:
    """One device on which a few lanes wake all the time, beside offline jobs that come and go."""
    draw = random.Random(seed)
    world = world or World(Scheduler(random_settings(draw)))
    world.device_up(0, 8)
    session = world.open()
    while world.events < events:
        lanes = [job for job, event in world.live.items() if event.lane]
        others = [job for job in world.live if job not in lanes]
        chance = draw.random()
        if world.sms[0] is None:
            world.revive()
        elif len(lanes) < 3:
            kind = draw.choice(("reservation", "reservation", "quota"))
            world.open_lane(session, 0, **{kind: draw.choice(SHARES[:8])})
        elif len(others) < 4 or (chance < 0.02 and len(others) < 8):
            shape = LaunchShape(draw.choice(OCCUPANCIES), 400, draw.random() < 0.97)
            share = draw.choice((None, None, Fraction(1), Fraction(3), Fraction(13, 2)))
            kind = draw.choice(("quota", "quota", "quota", "reservation"))
            stream = draw.randint(1, 1000)
            world.submit(session, 0, (shape,), stream=stream, **({kind: share} if share else {}))
        elif chance < 0.03:
            world.cancel(draw.choice(others))
        elif chance < 0.05:
            resize(world, draw, draw.choice([*lanes, *others]))
        elif chance < 0.052:
            world.close_lane(draw.choice(lanes))
        elif chance < 0.10:
            world.pass_time(draw.choice((1, 10, 100)))
        elif chance < 0.11:
            world.come_to_rest()
        elif works := world.work[0]:
            job = draw.choice(list(works))
            if works[job].lane:
                lane_step(world, draw, 0, job)
            elif chance < 0.4:
                world.carry_out(0, job)
            elif chance < 0.55:
                world.leave(0, job, draw.randint(1, 8))
            elif chance < 0.6:
                world.run(0, job, draw.randint(1, 40))
            else:
                world.deliver(0)
    world.finish()
    return world


def share_history(seed: int, settings: Settings) -> World:
    """A few jobs with slices of one or two sizes on one device, which share it, and then rest."""
    draw = random.Random(seed)
    world = World(Scheduler(settings))
    world.device_up(0, draw.choice((1, 2)))
    session = world.open()
    sizes = draw.choice(((4,), (32,), (32, 7, 3)))
    weights = draw.choice(((1,), (1, 1, 2, 5)))
    jobs: list[JobId] = []
    for stream in range(draw.randint(3, 9)):
        shape = (LaunchShape(draw.choice(sizes), 10**6),)
        chance = draw.random()
        if chance < 0.55:
            quota = draw.choice((None, None, Fraction(1, 2), Fraction(1, 16), Fraction(1)))
            weight = draw.choice(weights)
            job = world.submit(session, 0, shape, stream=stream, quota=quota, weight=weight)
            jobs.append(job)
        elif chance < 0.65:
            reservation = draw.choice((Fraction(1, 2), Fraction(1), Fraction(61, 32)))
            jobs.append(world.submit(session, 0, shape, stream=stream, reservation=reservation))
        elif chance < 0.75 and jobs:
            world.cancel(draw.choice(jobs))
        else:
            while world.deliver(0):
                pass
            world.pass_time(draw.choice((10, 50, 100, 150, 200, 400)))
    world.come_to_rest()
    world.finish()
    return world


def random_settings(draw: random.Random) -> Settings:
    return Settings(
        offline_floor=draw.choice((0, 0, 0, Fraction(1, 2), Fraction(1), "25%")),
        hold_ns=draw.choice((0, 0, 50)),
        grace_ns=200,
        rebalance_hold_ns=draw.choice((20, 50)),
        rebalance_limit=draw.choice((10_000_000, 30_000_000)),  # turns of 100 and 33 ns
    )


def step(world: World, draw: random.Random) -> None:
    """Make one random event happen."""
    chance = draw.random()
    devices = list(world.sms)
    device = draw.choice(devices)
    works = world.work[device]
    if world.failed and draw.random() < 0.1:
        world.see(*draw.choice(list(world.failed)))
    if chance < 0.55:
        device_step(world, draw, device)
    elif chance < 0.75:
        submit(world, draw, device)
    elif chance < 0.80 and world.live:
        resize(world, draw, draw.choice(list(world.live)))
    elif chance < 0.84 and world.live:
        world.cancel(draw.choice(list(world.live)), by_owner=draw.random() < 0.5)
    elif chance < 0.86:
        if draw.random() < 0.5:
            world.open()
        elif len(world.open_sessions) > 1:
            world.close(draw.choice(world.open_sessions))
    elif chance < 0.94:
        world.pass_time(draw.choice((1, 10, 100)))
    elif chance < 0.945 or world.sms[device] is None:
        revive(world, draw, device)
    elif chance < 0.955:
        prepare(world, draw)
    elif chance < 0.97 and works:
        work = works[draw.choice(list(works))]
        work.stuck = work.stuck or draw.random() < 0.2
        work.deaf = draw.random() < 0.3
    elif 0.97 <= chance < 0.975:
        world.pause(device, now=draw.random() < 0.5)
    elif chance >= 0.975 and device in world.paused:
        world.resume(device)


def prepare(world: World, draw: random.Random) -> None:
    """A device gets what jobs need, or reports that it cannot."""
    for job in draw.sample(list(world.preparing), min(3, len(world.preparing))):
        if job in world.preparing:
            world.prepare(job, failed=draw.random() < 0.1)


def device_step(world: World, draw: random.Random, device: int) -> None:
    works = world.work[device]
    if draw.random() < 0.4 or not works:
        world.deliver(device)
        return
    lanes = [job for job, work in works.items() if work.lane]
    if lanes and draw.random() < 0.3:
        lane_step(world, draw, device, draw.choice(lanes))
        return
    job = draw.choice(list(works))
    what = draw.random()
    if what < 0.35:
        world.carry_out(device, job)
    elif what < 0.65:
        world.leave(device, job, draw.randint(1, 4))
    elif what < 0.98:
        world.run(device, job, draw.randint(1, 40))
    else:
        world.fail(device, job)


def lane_step(world: World, draw: random.Random, device: int, job: JobId) -> None:
    """A lane runs something, has nothing to run, or its device hears of a plan."""
    what = draw.random()
    if what < 0.2:
        world.lane_launches(device, job)
    elif what < 0.5:
        world.run(device, job, 1)
        world.lane_rests(device, job)
        while draw.random() < 0.8 and world.deliver(device):
            pass
    elif what < 0.97:
        world.carry_out(device, job)
    else:
        world.close_lane(job)


def revive(world: World, draw: random.Random, device: int) -> None:
    """A host dies, maybe permanently, or one comes up, perhaps with another number of SMs."""
    state = str(world.scheduler.devices[device].state)
    final = draw.random() < 0.1
    if world.sms[device] is not None or state == "replacing" or (final and state != "gone"):
        world.host_dies(device, final=final, most=draw.choice((0, 0, 1, 3)))
    else:
        world.device_up(device, draw.choice((1, 2, 4, 8)))


def random_launches(draw: random.Random) -> tuple[LaunchShape, ...]:
    return tuple(
        LaunchShape(
            draw.choice(OCCUPANCIES),
            draw.choice((1, 3, 10, 50, 400)),
            draw.random() < 0.93,
        )
        for _ in range(draw.choice((1, 1, 1, 2, 4)))
    )


def submit(world: World, draw: random.Random, device: int) -> JobId | None:
    if not world.open_sessions:
        return None
    known = list(world.live)
    lane = world.lanes > 0 and draw.random() < world.lanes
    kind = draw.random()
    more: dict[str, object] = {}
    if kind < 0.35:
        more["reservation"] = draw.choice(SHARES)
        more["deadline_ns"] = draw.choice((None, world.now_ns + draw.randint(1, 500)))
        more["exclusive"] = draw.random() < 0.25
    elif kind < 0.75:
        more["quota"] = draw.choice(SHARES)
    return world.submit(
        draw.choice(world.open_sessions),
        device,
        () if lane else random_launches(draw),
        lane=lane,
        sticky=not lane and draw.random() < 0.7,
        stream=draw.randint(0, 6),
        after=tuple(draw.sample(known, min(len(known), draw.choice((0, 0, 0, 1, 2))))),
        timeout_ns=draw.choice((None, None, None, 300)),
        killable=draw.random() < 0.3,
        prepared=draw.random() < 0.8,
        weight=draw.choice((1, 1, 1, 2, 5, 1000)),
        **more,
    )


def resize(world: World, draw: random.Random, job: JobId) -> None:
    share = draw.choice(SHARES)
    if (world.reservation[job] is not None) is (draw.random() < 0.95):
        world.resize(job, reservation=share)
    else:
        world.resize(job, quota=share)


def main() -> None:
    seeds, events = (int(text) for text in [*sys.argv[1:], "20", "2000"][:2])
    for seed in range(seeds):
        world = history(seed, events)
        print(f"seed {seed}: {world.events} events, {len(world.ended)} jobs")


if __name__ == "__main__":
    main()
