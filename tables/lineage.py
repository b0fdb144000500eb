"""Where the agents of a population come from: each member's hyper-parameters, and who was copied from whom.

Espeholt et al. 2018 (IMPALA), appendix F, draws curves and schedules by tracking back through the ancestors.
"""

from typing import Mapping, NamedTuple, Sequence

from scalable_agents.records import run_directory
from scalable_agents.training.population import population_directory


class Member(NamedTuple):
  """What a member has left behind."""
  start: dict[str, float]  # Its hyper-parameters at the start.
  evolutions: Sequence[population_directory.Evolution]
  fitness: population_directory.Fitness


class Segment(NamedTuple):
  """A part of an ancestry: what a member did between two numbers of its environment frames."""
  member: int
  begin: int
  end: float


def read(population: str) -> dict[int, Member]:
  """The members by index; those without a fitness are not among them, as they have not evolved.

  Raises:
    run_directory.RunDirectoryError: a file of a member is damaged.
  """
  members = {}
  for index, logdir in population_directory.members(population).items():
    if fitness := population_directory.read_fitness(logdir):
      flags = run_directory.read_config(logdir)['flags']
      start = {name: flags[name] for name in fitness.hyper_parameters}
      members[index] = Member(start, population_directory.read_evolutions(logdir), fitness)
  return members


def fittest(members: Mapping[int, Member]) -> int:
  """The member of the highest fitness."""
  return max(members, key=lambda index: members[index].fitness.fitness)


def ancestry(members: Mapping[int, Member], index: int, end: float | None = None) -> list[Segment]:
  """The segments that led to a member's agent at so many environment frames, latest first.

  Default: the agent of which the member's fitness is.
  """
  segments = []
  end = members[index].fitness.environment_frames if end is None else end
  while index in members:
    # A snapshot is older than the evolution at its frames.
    copies = [evolution for evolution in members[index].evolutions
              if evolution.parent is not None and evolution.environment_frames < end]
    segment = Segment(index, copies[-1].environment_frames if copies else 0, end)
    if segment in segments:  # Members that lost evolutions in a crash may be each other's ancestors.
      break
    segments.append(segment)
    if not copies:
      break
    index, end = copies[-1].parent, copies[-1].parent_environment_frames
  return segments


def schedule(member: Member, name: str, segment: Segment | None = None) -> list[tuple[int, float]]:
  """(frames, value from there on) of a hyper-parameter, the last value twice; of a segment, where one is given."""
  points = [(0, member.start[name])] + [(evolution.environment_frames, evolution.hyper_parameters[name])
                                        for evolution in member.evolutions]
  begin, end = (segment.begin, segment.end) if segment else (0, member.fitness.environment_frames)
  inside = [(max(frames, begin), value) for (frames, value), (following, _) in zip(points, points[1:] + [(end, 0)])
            if frames < end and following > begin]
  return inside + [(end, inside[-1][1])]
