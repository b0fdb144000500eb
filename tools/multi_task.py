"""Compares the speed of one agent on eight games with the speed of eight agents on one game each.

  scalable-agents multi_task

One agent on several games plays equally many steps of each game. So the expected speed is the harmonic mean of the
games' own speeds. All runs use all 18 actions. The last line of the output is a JSON object with all numbers.
"""

import dataclasses
import json
import statistics

from scalable_agents.benchmark import training_rate
from scalable_agents.environments import registry
from scalable_agents.processes import device_report
from scalable_agents.processes import run_flags
from scalable_agents.records import settings
from scalable_agents.records.settings import setting


@dataclasses.dataclass(frozen=True)
class MultiTaskConfig:
  """The flags."""

  seconds: float = setting(30., 'Seconds for which each of the nine runs is measured.', at_least=1,
                           at_most=training_rate.MAX_SECONDS)
  games: str = setting('pong,breakout,qbert,seaquest,enduro,space_invaders,beam_rider,ms_pacman',
                       'The games, with commas between them.')
  flags: str = setting('--torso=shallow',
                       'Flags of impala_atari57 for all runs, with commas between them.')


def validate(config: MultiTaskConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  try:
    for game in registry.expand(config.games):
      registry.check(game)
  except (ValueError, ImportError) as error:
    raise ValueError(f'--games: {error}') from error


def _rate(config, games):
  """Returns the environment frames per second of a training run on these games."""
  rows = training_rate.steady_rows(
      lambda run: ['scalable_agents.agents.impala_atari57', f'--level_name={",".join(games)}', '--full_action_set',
                   *training_rate.split(config.flags), *(f'--{name}={value}' for name, value in run.items())],
      config.seconds)
  lacking = [game for game in games if rows[-1].get(f'episode_return/{game}') is None]
  if lacking:
    print(f'no episode of {", ".join(lacking)} has ended yet: choose a larger --seconds')
  return training_rate.frames_per_second(rows)


def _line(name, rate):
  print(f'{name:<32}{rate:>10,.0f} frames/s', flush=True)


def main():
  """Measures each game, then all games at once, and prints the ratio."""
  config = run_flags.config_from_flags(MultiTaskConfig, validate)
  device_report.tell()
  games, alone = registry.expand(config.games), {}
  for game in games:
    alone[game] = _rate(config, [game])
    _line(game, alone[game])
  expected = statistics.harmonic_mean(alone.values())
  _line('harmonic mean', expected)
  together = _rate(config, games)
  _line('all at once', together)
  print(f'all at once is {together / expected:.1%} of the harmonic mean')
  print(json.dumps({'alone': alone, 'harmonic_mean': expected, 'together': together, 'share': together / expected}))


if __name__ == '__main__':
  run_flags.define(MultiTaskConfig())
  run_flags.run_main(main)
