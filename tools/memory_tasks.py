"""Compares R2D2's strategies for recurrent states in replay on a small built-in task.

  bazel run //tools:memory_tasks -- --experiment=states --seeds=5

Kapturowski et al. 2019, section 3 and figure 4. The experiments are:

  states  Stored states with a burn-in, stored states, and zero states. A sequence has at most 8 steps, and the question
          comes 8 to 15 steps after the cue, so that only a state at the start of a sequence has the answer.
  memory  R2D2 with its LSTM, and without it (the Feed-Forward ablation).

The runs are synchronous, so each is determined by its seed. The program prints a table, and writes EXPERIMENT.csv (the
learning curves) and EXPERIMENT.png to --output, beside the run directories. The same command continues after an
interruption. The table has means of the last third of each run.
"""

import dataclasses

from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting
from scalable_agents.tools import comparison

_FLAGS = ('--sequence_length=4', '--sequence_period=2', '--unroll_length=10', '--batch_size=32',
          '--samples_per_period=2.13', '--replay_capacity=2_000', '--replay_minimum_size=100', '--learning_rate=1e-3',
          '--target_update_interval=50', '--n_step=3', '--num_environments=16', '--num_environment_workers=1',
          '--synchronous')


def _experiment(lines: dict[str, tuple[str, ...]]) -> comparison.Experiment:
  return comparison.Experiment(('recall_late',), 30_000, _FLAGS, [
      comparison.Line(name, 'r2d2_atari57', ('recall_late',), (1,), flags) for name, flags in lines.items()], 1 / 3)


_STORED, _BURN_IN = '--recurrent_state=stored', '--burn_in=4'
EXPERIMENTS = {
    'states': _experiment({
        'stored states with a burn-in': (_STORED, _BURN_IN), 'stored states': (_STORED, '--burn_in=0'),
        'zero states with a burn-in': ('--recurrent_state=zero', _BURN_IN),
        'zero states': ('--recurrent_state=zero', '--burn_in=0')}),
    'memory': _experiment({
        'R2D2': (_STORED, _BURN_IN), 'Feed-Forward': ('--nouse_lstm', '--burn_in=0')}),
}


@dataclasses.dataclass(frozen=True)
class MemoryTasksConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('states', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/memory_tasks', 'Folder to write to.')


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(MemoryTasksConfig)
  comparison.run(EXPERIMENTS[config.experiment], config)


if __name__ == '__main__':
  run_flags.define(MemoryTasksConfig())
  run_flags.run_main(main)
