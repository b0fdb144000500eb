"""Compares the off-policy corrections of IMPALA on a small built-in task, as table 2 of the paper does on DMLab levels.

  bazel run //tools:off_policy -- --seeds=5

Espeholt et al. 2018, section 5.2.2: V-trace, 1-step importance sampling, epsilon-correction and no correction, each
without and with replay. On small tasks actors and learner are almost in step, so --policy_lag makes the data stale. The
claim is the order of the four with replay.

The runs are synchronous, so each is determined by its seed. The program prints a table of mean returns over whole runs,
so that slow learning counts, and writes corrections.csv and corrections.png to --output, beside the run directories.
The same command continues after an interruption.
"""

import dataclasses

from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting
from scalable_agents.tools import comparison

_CORRECTIONS = {'V-trace': 'vtrace', '1-Step': 'one_step', 'epsilon-correction': 'epsilon', 'No-correction': 'none'}
EXPERIMENTS = {'corrections': comparison.Experiment(
    tasks=('catch',), frames=40_000, measured=1.,
    # With fewer updates of lag, or a lower learning rate, all but No-correction learn equally fast.
    flags=('--torso=shallow', '--num_environments=16', '--num_environment_workers=1', '--batch_size=32',
           '--unroll_length=8', '--learning_rate=3e-3', '--nolearning_rate_decay', '--entropy_cost=0.003',
           '--policy_lag=60', '--synchronous'),
    lines=[comparison.Line(f'{name}, {kind} replay', 'impala_atari57', ('catch',), (1,),
                           (f'--off_policy_correction={value}', f'--replay_share={share}'))
           for kind, share in (('without', 0), ('with', 0.5)) for name, value in _CORRECTIONS.items()])}


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('corrections', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/off_policy', 'Folder to write to.')


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(OffPolicyConfig)
  comparison.run(EXPERIMENTS[config.experiment], config)


if __name__ == '__main__':
  run_flags.define(OffPolicyConfig())
  run_flags.run_main(main)
