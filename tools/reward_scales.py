"""Compares agents on small built-in tasks with rewards of different sizes, as the PopArt paper does on Atari games.

  scalable-agents reward_scales --experiment=scales --seeds=5

The experiments are:

  scales    Three tasks whose rewards have the ratio 1 : 100 : 10,000, and the same with all rewards multiplied by
            1,000. The claims: PopArt learns all tasks, and its learning curves do not depend on the factor.
  clipping  A task in which clipped rewards lead to another policy than the true ones.

The runs are synchronous, so each is determined by its seed. The program prints a table, and writes EXPERIMENT.csv (the
learning curves) and EXPERIMENT.png to --output, beside the run directories. The same command continues after an
interruption: it makes the runs that are not complete. The table has means of the last tenth of each run. Hessel et al.
2019.
"""

import dataclasses

from scalable_agents.environments import harvest
from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting
from scalable_agents.tools import comparison

_IMPALA, _POPART = 'impala_atari57', 'popart_impala_atari57'
_COMMON = ('--torso=shallow', '--num_environments=48', '--num_environment_workers=2', '--batch_size=24',
           '--unroll_length=8', '--optimizer=adam', '--learning_rate=1e-3', '--synchronous')
# A level has about 20,000 rollouts, against 2.5 million in a full run on Atari-57, and the statistics start at
# sigma = 1. With the paper's decay, sigma would be too large for the smallest rewards for most of a run. The entropy
# cost of 0.3 suits normalised advantages. With it, MultiHead-IMPALA learns none of the tasks.
_NORMALIZED = ('--popart_decay=3e-3', '--entropy_cost=0.3')
_NOT_NORMALIZED = ('--entropy_cost=0.03',)
_HEADS = ('--value_normalization=none', *_NOT_NORMALIZED)

_TASKS = 'catch', 'catch_mirror', 'catch_shift'
# The levels of a line and their optimal returns, which are the factors of the rewards.
_SMALL = ('catch_x0.1', 'catch_mirror_x10', 'catch_shift_x1000'), (0.1, 10, 1000)
_LARGE = ('catch_x100', 'catch_mirror_x10000', 'catch_shift_x1000000'), (100, 10_000, 1_000_000)
_HARVEST = ('harvest',), (harvest.Harvest.optimal_return,)
_TRUE, _CLIPPED = ('--reward_transform=none',), ('--reward_transform=abs_one',)
EXPERIMENTS = {
    'scales': comparison.Experiment(_TASKS, 500_000, (*_COMMON, *_TRUE), (
        comparison.Line('PopArt-IMPALA', _POPART, *_SMALL, _NORMALIZED),
        comparison.Line('PopArt-IMPALA, rewards x 1,000', _POPART, *_LARGE, _NORMALIZED),
        comparison.Line('MultiHead-IMPALA', _POPART, *_SMALL, _HEADS),
        comparison.Line('MultiHead-IMPALA, rewards x 1,000', _POPART, *_LARGE, _HEADS),
        comparison.Line('IMPALA', _IMPALA, *_SMALL, _NOT_NORMALIZED))),
    'clipping': comparison.Experiment(('harvest',), 50_000, (*_COMMON, '--entropy_cost=0.3', '--learning_rate=3e-4'), (
        comparison.Line('PopArt-IMPALA, true rewards', _POPART, *_HARVEST, _TRUE),
        comparison.Line('PopArt-IMPALA, clipped rewards', _POPART, *_HARVEST, _CLIPPED),
        comparison.Line('IMPALA, clipped rewards', _IMPALA, *_HARVEST, _CLIPPED))),
}


@dataclasses.dataclass(frozen=True)
class RewardScalesConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('scales', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/reward_scales', 'Folder to write to.')


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(RewardScalesConfig)
  comparison.run(EXPERIMENTS[config.experiment], config)


if __name__ == '__main__':
  run_flags.define(RewardScalesConfig())
  run_flags.run_main(main)
