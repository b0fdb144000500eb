"""The history of a population: each member's hyper-parameters, and which members it copied.

In Espeholt et al. 2018 (IMPALA), appendix F, curves and schedules follow the ancestors of the fittest member.
"""

from collections.abc import Mapping, Sequence
import os
from typing import NamedTuple

from scalable_agents.population import population_directory
from scalable_agents.records import json_text
from scalable_agents.records import run_directory


class Member(NamedTuple):
  """The record of a member."""
  start: dict[str, float]  # The initial hyper-parameters.
  evolutions: Sequence[population_directory.Evolution]
  fitness: population_directory.Fitness


class Segment(NamedTuple):
  """A part of an ancestry: the training of one member between two numbers of environment frames."""
  member: int
  begin: int  # Environment frames.
  end: float  # Environment frames.


def read(population: str) -> dict[int, Member]:
  """Reads the members of a population. Members without a fitness have not evolved and are left out.

  Args:
    population: the population's directory.
  Returns:
    A dict from index to Member.
  Raises:
    run_directory.RunDirectoryError: a file of a member is damaged.
  """
  members = {}
  for index, logdir in population_directory.members(population).items():
    if fitness := population_directory.read_fitness(logdir):
      evolutions = population_directory.read_evolutions(logdir)
      members[index] = Member(_start(logdir, fitness, evolutions), evolutions, fitness)
  names = {name for member in members.values() for name in member.start}
  for index, member in members.items():
    for name in sorted(names - member.start.keys()):
      file = os.path.join(population, population_directory.member_name(index), population_directory.FITNESS)
      raise run_directory.RunDirectoryError(run_directory.damaged(file, f'"{name}": missing, other members have it'))
  return members


def _start(logdir: str, fitness: population_directory.Fitness,
           evolutions: Sequence[population_directory.Evolution]) -> dict[str, float]:
  """Returns the initial hyper-parameters of a member. Raises RunDirectoryError if one is missing in a file."""
  flags = run_directory.read_config(logdir)['flags']
  for file, values in ((run_directory.CONFIG, flags),
                       *((population_directory.EVOLUTION, evolution.hyper_parameters) for evolution in evolutions)):
    for name in fitness.hyper_parameters:
      if not json_text.is_a(values.get(name), float):
        raise run_directory.RunDirectoryError(run_directory.damaged(
            run_directory.path(logdir, file), f'"{name}": want a number, as in {population_directory.FITNESS}'))
  return {name: flags[name] for name in fitness.hyper_parameters}


def fittest(members: Mapping[int, Member]) -> int:
  """Returns the index of the member with the highest fitness."""
  return max(members, key=lambda index: members[index].fitness.fitness)


def ancestry(members: Mapping[int, Member], index: int, end: float | None = None) -> list[Segment]:
  """Returns the segments that led to a member's agent, latest first.

  Args:
    members: all members by index.
    index: the member.
    end: environment frames of the agent. Default: the number at which the member's fitness was measured.
  """
  segments = []
  member: int | None = index
  until: float | None = members[index].fitness.environment_frames if end is None else end
  while member is not None and until is not None and member in members:
    # A snapshot is made before the evolution with the same number of frames.
    copies = [evolution for evolution in members[member].evolutions
              if evolution.parent is not None and evolution.environment_frames < until]
    segment = Segment(member, copies[-1].environment_frames if copies else 0, until)
    if segment in segments:  # If members lost evolutions in a crash, each may be an ancestor of the other.
      break
    segments.append(segment)
    if not copies:
      break
    member, until = copies[-1].parent, copies[-1].parent_environment_frames
  return segments


def schedule(member: Member, name: str, segment: Segment | None = None) -> list[tuple[float, float]]:
  """Returns the values of a hyper-parameter as points (environment frames, value from that number on).

  Args:
    member: the member.
    name: the hyper-parameter.
    segment: restricts the points to this segment, if given.
  Returns:
    The points. The last value is repeated at the end, so that a line can be drawn to it.
  """
  points = [(0, member.start[name])] + [(evolution.environment_frames, evolution.hyper_parameters[name])
                                        for evolution in member.evolutions]
  begin, end = (segment.begin, segment.end) if segment else (0, member.fitness.environment_frames)
  inside = [(max(frames, begin), value)
            for (frames, value), (following, _) in zip(points, points[1:] + [(end, 0)], strict=True)
            if frames < end and following > begin]
  return inside + [(end, inside[-1][1] if inside else member.start[name])]
