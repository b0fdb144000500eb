"""Studies V-trace on a small built-in task, as section 5.2.2 and appendix E of the IMPALA paper do on DMLab levels.

  bazel run //tools:off_policy -- --experiment=policy_lag --seeds=5

Espeholt et al. 2018. On small tasks actors and learner are almost in step, so --policy_lag makes the data stale. The
experiments are:

  corrections    V-trace, 1-step importance sampling, epsilon-correction and no correction, each without and with
                 replay (table 2). The claim is the order of the four with replay.
  policy_lag     The four with actors that are 0, 15 and 60 updates behind, without replay (figure E.1). The claim is
                 that V-trace loses least.
  stability      The four with replay, for 8 samples of the sweep's hyper-parameters (figure E.2). A second picture has
                 the scores at the end, best first.
  action_values  The next state's V-trace target or its value in the policy gradient, for the same samples (figures E.3
                 and E.4). A second picture as for stability.
  rho_bar        V-trace with largest weights of 1, 10 and 100, with replay (section 5.2.2).

The runs are synchronous, so each is determined by its seed. The program prints a table of mean returns, and writes
EXPERIMENT.csv and EXPERIMENT.png to --output, beside the run directories. The means are over whole runs, so that slow
learning counts; with samples of hyper-parameters, they are over the last tenth, as in the paper. The same command
continues after an interruption.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os

from matplotlib import ticker
import numpy as np

from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import drawing
from scalable_agents.tools import comparison

_CORRECTIONS = {'V-trace': 'vtrace', '1-Step': 'one_step', 'epsilon-correction': 'epsilon', 'No-correction': 'none'}
_LAGS = (0, 15, 60)  # Updates. A run without replay makes about 160.
_STALE, _REPLAY = f'--policy_lag={_LAGS[-1]}', '--replay_share=0.5'
_SAMPLES = 8         # Of the sweep's 24.
# With fewer updates of lag, or a lower learning rate, all but No-correction learn equally fast.
_RATES = ('--learning_rate=3e-3', '--entropy_cost=0.003')


def _line(name: str, flags: Sequence[str], panel: str = '') -> comparison.Line:
  return comparison.Line(name, 'impala_atari57', ('catch',), (1,), flags, panel)


def _experiment(lines: Sequence[comparison.Line], rates: Sequence[str] = _RATES,
                measured: float = 1.) -> comparison.Experiment:
  flags = ('--torso=shallow', '--num_environments=16', '--num_environment_workers=1', '--batch_size=32',
           '--unroll_length=8', '--nolearning_rate_decay', '--synchronous')
  return comparison.Experiment(('catch',), 40_000, (*flags, *rates), lines, measured)


def _samples(variants: Mapping[str, Sequence[str]]) -> comparison.Experiment:
  """Returns an experiment with a panel for each variant, and in it a line for each sample of the hyper-parameters."""
  return _experiment([_line(f'sample {index}', (*flags, f'--sweep_index={index}'), name)
                      for name, flags in variants.items() for index in range(_SAMPLES)], rates=(), measured=0.1)


EXPERIMENTS = {
    'corrections': _experiment([
        _line(f'{name}, {kind} replay', (_STALE, f'--off_policy_correction={value}', f'--replay_share={share}'))
        for kind, share in (('without', 0), ('with', 0.5)) for name, value in _CORRECTIONS.items()]),
    'policy_lag': _experiment([
        _line(name, (f'--policy_lag={lag}', f'--off_policy_correction={value}'), f'policy lag of {lag} updates')
        for lag in _LAGS for name, value in _CORRECTIONS.items()]),
    'stability': _samples({name: (_STALE, _REPLAY, f'--off_policy_correction={value}')
                           for name, value in _CORRECTIONS.items()}),
    'action_values': _samples({'r + γ v of the next state': ('--action_values=bootstrapped',),
                               'r + γ V of the next state': ('--action_values=one_step',)}),
    'rho_bar': _experiment([
        _line(f'largest weight {value}', (_STALE, _REPLAY, f'--clip_rho_threshold={value}',
                                          f'--clip_pg_rho_threshold={value}')) for value in (1, 10, 100)]),
}
_SORTED = ('stability', 'action_values')  # The experiments with samples of the hyper-parameters.


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('corrections', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/off_policy', 'Folder to write to.')


def draw_sorted(variants: Mapping[str, Sequence[Sequence[float]]], file: str):
  """Draws the scores of samples of hyper-parameters, best first: a line per variant. Figures 4 (lower row) and E.2.

  Args:
    variants: variant -> for each sample, the score of each seed. A point is the mean over seeds, with their standard
      deviation.
    file: the picture's file.
  """
  picture, ((axes,),) = drawing.grid(1, 1, 7, 4.2)
  for number, (name, of_samples) in enumerate(variants.items()):
    scores = np.array(sorted(of_samples, key=np.mean, reverse=True))
    axes.errorbar(np.arange(1, len(scores) + 1), scores.mean(axis=1), scores.std(axis=1), marker='o', markersize=3.5,
                  elinewidth=0.8, label=name, **drawing.line_style(number))
  axes.set_xlabel('hyper-parameter combination, best first', color=drawing.INK)
  axes.set_ylabel('return / optimal return at the end', color=drawing.INK)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  drawing.plain(axes, 'both')
  drawing.title_and_legend(picture, 'Mean over seeds, with the standard deviation', [axes])
  drawing.save(picture, file)


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(OffPolicyConfig)
  experiment = EXPERIMENTS[config.experiment]
  curves = comparison.run(experiment, config)
  if config.experiment in _SORTED:
    variants = {}
    for line in experiment.lines:
      finals = [float(comparison.mean_share(curve, experiment.measured)[0]) for curve in curves[line.full_name]]
      variants.setdefault(line.panel, []).append(finals)
    file = os.path.join(files.make_folder(config.output), f'{config.experiment}_sorted.png')
    draw_sorted(variants, file)
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(OffPolicyConfig())
  run_flags.run_main(main)
