"""Studies IMPALA on a small built-in task, as section 5.2 and appendix E of the paper do on DMLab levels.

  scalable-agents off_policy --experiment=policy_lag --seeds=5

Espeholt et al. 2018. On small tasks actors and learner are almost in step, so --policy_lag makes the data stale. The
experiments are:

  agents         IMPALA, batched A2C and A3C, for 8 samples of the sweep's hyper-parameters (figure 4). An update of A3C
                 has one unroll, and those of the others have 32, so A3C makes more updates of the same frames.
  corrections    V-trace, 1-step importance sampling, epsilon-correction and no correction, each without and with
                 replay (table 2). The claim is the order of the four with replay.
  policy_lag     The four with actors that are 0, 15 and 60 updates behind, without replay (figure E.1). The claim is
                 that V-trace loses least.
  stability      The four with replay, for the same samples (figure E.2).
  action_values  The next state's V-trace target or its value in the policy gradient, for the same samples (figures E.3
                 and E.4).
  rho_bar        V-trace with largest weights of 1, 10 and 100, with replay (section 5.2.2).

The runs are synchronous, so each is determined by its seed. The program prints a table of mean returns, and writes
EXPERIMENT.csv and EXPERIMENT.png to --output, beside the run directories. The means are over whole runs, so that slow
learning counts; with samples of hyper-parameters, they are over the last tenth, for the paper's final returns. A second
picture, EXPERIMENT_samples.png, then has the curves of the best three samples and the scores of all. The same command
continues after an interruption: it makes the runs that are not complete.
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
from scalable_agents.tables.papers import off_policy_table
from scalable_agents.tools import comparison

_LAGS = (0, 15, 60)  # Updates. A run without replay makes about 160.
_STALE, _REPLAY = f'--policy_lag={_LAGS[-1]}', '--replay_share=0.5'
_SAMPLES = 8         # Of the sweep's 24.
# With fewer updates of lag, or a lower learning rate, all but No-correction learn equally fast.
_RATES = ('--learning_rate=3e-3', '--entropy_cost=0.003')


def _line(name: str, flags: Sequence[str], panel: str = '', agent: str = 'impala') -> comparison.Line:
  return comparison.Line(name, f'{agent}_atari57', ('catch',), (1,), flags, panel)


def _experiment(lines: Sequence[comparison.Line], rates: Sequence[str] = _RATES,
                measured: float = 1.) -> comparison.Experiment:
  flags = ('--torso=shallow', '--num_environments=16', '--num_environment_workers=1', '--unroll_length=8',
           '--nolearning_rate_decay', '--synchronous')
  return comparison.Experiment(('catch',), 40_000, (*flags, *rates), lines, measured)


def _samples(variants: Mapping[str, tuple[str, Sequence[str]]]) -> comparison.Experiment:
  """Returns an experiment with a panel for each variant, and in it a line for each sample of the hyper-parameters.

  Args:
    variants: name -> agent and flags.
  """
  lines = [_line(f'sample {index}', (*flags, f'--sweep_index={index}'), name, agent)
           for name, (agent, flags) in variants.items() for index in range(_SAMPLES)]
  return _experiment(lines, rates=(), measured=0.1)


EXPERIMENTS = {
    # A batch of A2C has an unroll of each environment.
    'agents': _samples({'IMPALA': ('impala', ()), 'batched A2C': ('a2c', ('--num_environments=auto',)),
                        'A3C': ('a3c', ())}),
    'corrections': _experiment([
        _line(f'{name}, {kind} replay', (_STALE, f'--off_policy_correction={value}', f'--replay_share={share}'))
        for kind, share in (('without', 0), ('with', 0.5)) for name, value in off_policy_table.CORRECTIONS.items()]),
    'policy_lag': _experiment([
        _line(name, (f'--policy_lag={lag}', f'--off_policy_correction={value}'), f'policy lag of {lag} updates')
        for lag in _LAGS for name, value in off_policy_table.CORRECTIONS.items()]),
    'stability': _samples({name: ('impala', (_STALE, _REPLAY, f'--off_policy_correction={value}'))
                           for name, value in off_policy_table.CORRECTIONS.items()}),
    'action_values': _samples({'r + γ v of the next state': ('impala', ('--action_values=bootstrapped',)),
                               'r + γ V of the next state': ('impala', ('--action_values=one_step',))}),
    'rho_bar': _experiment([
        _line(f'largest weight {value}', (_STALE, _REPLAY, f'--clip_rho_threshold={value}',
                                          f'--clip_pg_rho_threshold={value}')) for value in (1, 10, 100)]),
}
_SORTED = ('agents', 'stability', 'action_values')  # The experiments with samples of the hyper-parameters.


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('corrections', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  output: str = setting('results/off_policy', 'Folder to write to.')


def draw_samples(variants: Mapping[str, Sequence[Sequence[comparison.Curve]]], measured: float, file: str):
  """Draws the mean of the best three samples, and the scores of all samples at the end, best first. Figures 4 and E.2.

  Args:
    variants: variant -> for each sample, the curve of each seed. A score is the mean over seeds, with their standard
      deviation.
    measured: a score is the mean over this last part of a run.
    file: the picture's file.
  """
  picture, ((curves_axes, scores_axes),) = drawing.grid(1, 2, 10, 4.2)
  best, styles = {}, {}
  for number, (name, samples) in enumerate(variants.items()):
    scores = np.array([comparison.scores(of_seeds, measured) for of_seeds in samples])
    order = np.argsort(-scores.mean(axis=1), kind='stable')
    best[name] = [comparison.mean_curve(of_seed) for of_seed in zip(*(samples[i] for i in order[:3]), strict=True)]
    styles[name] = drawing.line_style(number)
    scores = scores[order]
    scores_axes.errorbar(np.arange(1, len(scores) + 1), scores.mean(axis=1),
                         scores.std(axis=1, ddof=int(scores.shape[1] > 1)), marker='o', markersize=3.5, elinewidth=0.8,
                         **styles[name])
  comparison.draw_panel(curves_axes, best, 'mean of the best three samples', styles)
  curves_axes.set_ylim(top=1.1)
  curves_axes.set_ylabel('return / optimal return')
  scores_axes.set_title('at the end, with the standard deviation', loc='left', fontsize=10)
  scores_axes.set_xlabel('hyper-parameter combination, best first')
  scores_axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
  drawing.plain(scores_axes, 'both')
  drawing.title_and_legend(
      picture, 'Mean over seeds, and on the left from the worst seed to the best', [curves_axes])
  drawing.save(picture, file)


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(OffPolicyConfig)
  experiment = EXPERIMENTS[config.experiment]
  curves = comparison.run(experiment, config)
  if config.experiment in _SORTED:
    variants = {}
    for line in experiment.lines:
      variants.setdefault(line.panel, []).append(curves[line.full_name])
    file = os.path.join(files.make_folder(config.output), f'{config.experiment}_samples.png')
    draw_samples(variants, experiment.measured, file)
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(OffPolicyConfig())
  run_flags.run_main(main)
