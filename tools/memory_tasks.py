"""Compares R2D2's strategies for recurrent states in replay on small tasks.

  scalable-agents memory_tasks --experiment=recall_late --seeds=5

Kapturowski et al. 2019, section 3 and figure 4. The experiments are:

  recall_late      Stored and zero states, each with and without a burn-in, and an agent without an LSTM (the
                   Feed-Forward ablation) on this built-in task. A sequence has at most 8 steps, and the question comes
                   8 to 15 steps after the cue, so that only a state at the start of a sequence has the answer.
  repeat_previous  The same agents on POPGym's RepeatPreviousEasy (Morad et al. 2023): the agent sees a card at each
                   step, and names the suit of the card of three steps before. Guesses give -0.5 on average.
  burn_in          Stored states with and without a burn-in on RepeatPreviousEasy, where sequences have two trained
                   steps, which both need a card from before these. The seeds are 201, 202, and so on, because the
                   setting, and the test in evidence.py, were chosen by runs with seeds up to 110.
  memory_len       R2D2 and Feed-Forward on bsuite's memory_len (Osband et al. 2020): the agent sees a bit at the first
                   of 13 steps, and names it at the last one. Guesses give 0.

The last three need packages of others: `pip install -r requirements-evidence.txt` in a checkout.

The runs are synchronous, so each is determined by its seed. The program prints a table, and writes EXPERIMENT.csv (the
learning curves) and EXPERIMENT.png to --output, beside the run directories. The same command continues after an
interruption: it makes the runs that are not complete. The table has means of the last third of each run.
"""

import dataclasses

from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting
from scalable_agents.tools import comparison

_FLAGS = ('--batch_size=32', '--replay_minimum_size=100', '--learning_rate=1e-3', '--target_update_interval=50',
          '--num_environments=16', '--num_environment_workers=1', '--synchronous')
# Sequences that are shorter than the time from the cue to the question.
_SHORT = ('--sequence_length=4', '--sequence_period=2', '--unroll_length=10', '--n_step=3', '--samples_per_period=2.13',
          '--replay_capacity=2_000')


def _experiment(task: str, level: str, frames: int, flags: tuple[str, ...],
                lines: dict[str, tuple[str, ...]]) -> comparison.Experiment:
  """Returns an experiment on a level whose best return is 1."""
  return comparison.Experiment((task,), frames, (*_FLAGS, *flags), [
      comparison.Line(name, 'r2d2_atari57', (level,), (1,), flags_of_line) for name, flags_of_line in lines.items()],
                               1 / 3)


def _repeat_previous(frames: int, flags: tuple[str, ...],
                     lines: dict[str, tuple[str, ...]]) -> comparison.Experiment:
  """Returns an experiment on RepeatPreviousEasy, where an action changes only the next reward."""
  return _experiment('RepeatPreviousEasy', 'gymnasium:popgym:popgym-RepeatPreviousEasy-v0', frames,
                     ('--n_step=1', '--replay_capacity=20_000', *flags), lines)


_STORED, _ZERO, _BURN_IN = '--recurrent_state=stored', '--recurrent_state=zero', '--burn_in=4'
_STORED_STATES = {'stored states with a burn-in': (_STORED, _BURN_IN), 'stored states': (_STORED, '--burn_in=0')}
_STATES = _STORED_STATES | {'zero states with a burn-in': (_ZERO, _BURN_IN), 'zero states': (_ZERO, '--burn_in=0')}
_FEED_FORWARD = {'Feed-Forward': ('--nouse_lstm', '--burn_in=0')}
EXPERIMENTS = {
    'recall_late': _experiment('recall_late', 'recall_late', 15_000, _SHORT, _STATES | _FEED_FORWARD),
    'repeat_previous': _repeat_previous(
        24_000, ('--sequence_length=8', '--sequence_period=4', '--unroll_length=12', '--samples_per_period=2.13'),
        _STATES | _FEED_FORWARD),
    'burn_in': _repeat_previous(
        16_000, ('--sequence_length=2', '--sequence_period=2', '--unroll_length=16', '--samples_per_period=4',
                 '--discount=0', '--learning_rate=3e-3'),
        _STORED_STATES)._replace(first_seed=201),
    'memory_len': _experiment(
        'memory_len', 'dm_env:bsuite.environments.memory_chain:MemoryChain?memory_length=12', 16_000, _SHORT,
        {'R2D2': (_STORED, _BURN_IN)} | _FEED_FORWARD),
}


@dataclasses.dataclass(frozen=True)
class MemoryTasksConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('recall_late', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/memory_tasks', 'Folder to write to.')


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(MemoryTasksConfig)
  comparison.run(EXPERIMENTS[config.experiment], config)


if __name__ == '__main__':
  run_flags.define(MemoryTasksConfig())
  run_flags.run_main(main)
