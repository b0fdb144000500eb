"""Checks claims of the four papers on small tasks: makes the runs, draws a figure per paper, and writes a page.

  make evidence
  scalable-agents evidence --papers=impala,laser --seeds=10

A claim compares two lines, which are runs that differ only in their seeds. The score of a run is its mean return over
the whole run or its last part, as a share of the optimal return; the page says which part. "Higher" holds if a
one-sided Mann-Whitney test on the scores has p < 0.05. "Higher, by seed" holds if a one-sided Wilcoxon signed-rank test
on the differences of the runs with the same seed has p < 0.05. "Alike" holds if the 95 % interval of the interquartile
mean of these differences is within a margin.

The program prints a table for each experiment, and writes evidence.md and PAPER.png to --output, beside the run
directories. If not all papers are chosen, the page's name has theirs, such as evidence_r2d2.md. The page also has the
effect in the first parts of the runs, which shows whether shorter ones would do if the learning rate does not decay.
The program exits with an error if a claim does not hold. The same command continues after an interruption: it makes the
runs that are not complete.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from collections.abc import Callable, Sequence, Set
import dataclasses
import glob
from importlib import util
import itertools
import os
import sys
from typing import NamedTuple

import numpy as np

from scalable_agents.processes import machine
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import package_versions
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import off_policy_table
from scalable_agents.tables.results import intervals
from scalable_agents.tools import comparison
from scalable_agents.tools import memory_tasks
from scalable_agents.tools import off_policy
from scalable_agents.tools import reward_scales
from scalable_agents.tools import shared_replay

_PACKAGES = 'scipy', 'rliable'  # Not among those that every installation has.
_PACKAGES_OF_TASKS = 'popgym', 'bsuite'
_LARGEST_P = 0.05
_SHARING_FRAMES = 24_000
_PARTS = {'a quarter': 0.25, 'half': 0.5, 'three quarters': 0.75, 'all': 1.}  # Of a run's frames.


@dataclasses.dataclass(frozen=True)
class EvidenceConfig:
  """The flags."""

  papers: str = setting('impala,popart,r2d2,laser', 'Papers, separated by commas: impala, popart, r2d2, laser.')
  seeds: int = setting(6, 'Number of runs of each line. Four studies with small effects have at least 10, 15 or 20.',
                       at_least=5, at_most=1_000)
  parallel: int = setting(2, 'Number of runs at a time.', at_least=1, at_most=settings.MAX_PROCESSES)
  broken_with: str = setting('', 'A flag that is added to all runs, such as --off_policy_correction=none, to see that '
                             'claims about broken agents fail. Not for laser, whose runs have no flags.')
  output: str = setting('results/evidence', 'Folder to write to.')


class Study(NamedTuple):
  """Runs on a small task.

  Attributes:
    command: the program that makes these runs, and others, alone, and its flags.
    frames: environment frames of a run.
    measured: a score is the mean return over this last part of a run.
    seeds: the least number of runs of each line.
    scores: takes the flags with the number of seeds, a folder and the names of the lines to run. Returns line ->
      scores, [parts, seeds].
  """
  command: str
  frames: int
  measured: float
  seeds: int
  scores: Callable[[EvidenceConfig, str, Set[str]], dict[str, np.ndarray]]


class Claim(NamedTuple):
  """A statement about two lines of a study: the first has higher scores, or both have alike ones."""
  text: str
  study: str
  first: str
  second: str
  margin: float = 0.  # 0: the first is higher. Otherwise both are alike, up to a difference of this size.
  by_seed: bool = False  # Whether runs with the same seed are compared. Claims with a margin always do.


class Verdict(NamedTuple):
  """Whether a claim holds, and why."""
  holds: bool
  difference: float  # The interquartile mean of the differences, paired by seed.
  reason: str
  p: float | None = None  # Of the test. None if the claim has a margin.


class Paper(NamedTuple):
  """What is checked of a paper."""
  title: str
  studies: dict[str, Study]
  claims: Sequence[Claim]


def _study(tool, name: str, seeds: int = 5, frames: int = 0) -> Study:
  """Returns the study that lines of a tool's experiment make. `frames` of 0 are the experiment's own."""
  experiment, flag = tool.EXPERIMENTS[name], f' --frames={frames:_}' if frames else ''

  def scores(config, folder, wanted):
    added = tuple(filter(None, [config.broken_with]))
    lines = [line._replace(flags=(*line.flags, *added)) for line in experiment.lines if line.full_name in wanted]
    curves = comparison.run(experiment._replace(lines=lines), comparison.Config(
        seeds=config.seeds, frames=frames, parallel=config.parallel, experiment=name, output=folder))
    return {line: np.array([comparison.scores(of_seeds, experiment.measured, part) for part in _PARTS.values()])
            for line, of_seeds in curves.items()}

  return Study(f'{tool.__name__.rpartition(".")[2]} --experiment={name}{flag}', frames or experiment.frames,
               experiment.measured, seeds, scores)


def _sharing(config: EvidenceConfig, folder: str, wanted: Set[str]) -> dict[str, np.ndarray]:
  curves = shared_replay.run(
      shared_replay.SharedReplayConfig(
          seeds=config.seeds, frames=_SHARING_FRAMES, parallel=config.parallel, output=folder),
      [line for line in shared_replay.LINES if line in wanted])
  return {line: np.array([shares[:, :round(part * shares.shape[1])].mean(axis=1) for part in _PARTS.values()])
          for line, shares in curves.items()}


def _higher(study: str, first: str, second: str, task: str = '') -> Claim:
  return Claim(f'{task}{first} > {second}', study, first, second)


def _order(study: str, lines: Sequence[str]) -> list[Claim]:
  """Returns the claims that each line is higher than the next one."""
  return [_higher(study, first, second) for first, second in itertools.pairwise(lines)]


def _lagging(lag: int) -> list[str]:
  return [f'{name}, policy lag of {lag} updates' for name in off_policy_table.CORRECTIONS]


PAPERS = {
    'impala': Paper(
        'IMPALA (Espeholt et al. 2018): off-policy corrections, section 5.2.2 and appendix E.1',
        {'policy_lag': _study(off_policy, 'policy_lag', 10),
         'corrections': _study(off_policy, 'corrections', 15, 20_000)},
        [Claim('without policy lag, V-trace and No-correction score the same, within 0.05', 'policy_lag',
               _lagging(0)[0], _lagging(0)[-1], 0.05),
         *_order('policy_lag', _lagging(15)), *_order('policy_lag', _lagging(60)),
         *_order('corrections', [f'{name}, with replay' for name in off_policy_table.CORRECTIONS])]),
    'popart': Paper(
        'PopArt (Hessel et al. 2019): rewards of different sizes',
        {'scales': _study(reward_scales, 'scales', frames=250_000), 'clipping': _study(reward_scales, 'clipping')},
        [Claim('PopArt > no normalisation, with rewards of different sizes', 'scales', 'PopArt-IMPALA',
               'MultiHead-IMPALA'),
         Claim('PopArt does not depend on the scale of rewards, within 0.05', 'scales', 'PopArt-IMPALA',
               'PopArt-IMPALA, rewards x 1,000', 0.05),
         Claim('true rewards > clipped rewards: clipping changes the policy', 'clipping', 'PopArt-IMPALA, true rewards',
               'PopArt-IMPALA, clipped rewards')]),
    'r2d2': Paper(
        'R2D2 (Kapturowski et al. 2019): recurrent states in replay, sections 3 and 5',
        {name: _study(memory_tasks, name) for name in memory_tasks.EXPERIMENTS}
        | {'burn_in': _study(memory_tasks, 'burn_in', 10, 12_000)},
        [_higher('recall_late', 'stored states', 'zero states', 'recall_late: '),
         _higher('recall_late', 'stored states with a burn-in', 'zero states with a burn-in', 'recall_late: '),
         _higher('recall_late', 'stored states', 'Feed-Forward', 'recall_late: '),
         _higher('repeat_previous', 'stored states with a burn-in', 'zero states with a burn-in', 'RepeatPrevious: '),
         _higher('repeat_previous', 'zero states with a burn-in', 'zero states', 'RepeatPrevious: '),
         _higher('repeat_previous', 'stored states', 'zero states', 'RepeatPrevious: '),
         _higher('repeat_previous', 'zero states', 'Feed-Forward', 'RepeatPrevious: '),
         Claim('RepeatPrevious, short sequences, by seed: stored states with a burn-in > stored states', 'burn_in',
               'stored states with a burn-in', 'stored states', by_seed=True),
         _higher('memory_len', 'R2D2', 'Feed-Forward', 'memory_len: ')]),
    'laser': Paper(
        'LASER (Schmitt et al. 2020): a shared replay, figure 3',
        {'sharing': Study(f'shared_replay --frames={_SHARING_FRAMES:_}', _SHARING_FRAMES, 1., 20, _sharing)},
        [Claim('no replay > naive sharing', 'sharing', 'no replay', 'shared replay, naive'),
         Claim('sharing with the trust region > no replay', 'sharing', 'shared replay, b = 0.1', 'no replay')]),
}


def judge(claim: Claim, first: Sequence[float], second: Sequence[float]) -> Verdict:
  """Returns whether a claim holds for the scores of the same seeds, [seeds] each."""
  from scipy import stats  # An installation may lack it; `main` says so.
  differences = np.subtract(first, second)
  difference = intervals.middle_half(differences)
  if not claim.margin:
    # Without method='exact', scipy warns of differences that are all 0.
    test = (stats.wilcoxon(differences, alternative='greater', method='exact') if claim.by_seed else
            stats.mannwhitneyu(first, second, alternative='greater'))
    _, p = np.array(test).tolist()  # Types that pyright does not know.
    return Verdict(p < _LARGEST_P, difference, 'p < 0.001' if p < 0.001 else f'p = {p:.3f}', p)
  _, low, high = intervals.interquartile_mean(differences)
  return Verdict(max(-low, high) < claim.margin, difference, f'from {low:+.3f} to {high:+.3f}')


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Returns the p-values of several tests with Holm's correction, smallest first.

  If no difference is real, the smallest of them is below 0.05 with a probability of at most 0.05. Holm 1979, "A simple
  sequentially rejective multiple test procedure".
  """
  return np.minimum(np.maximum.accumulate(np.sort(p_values) * np.arange(len(p_values), 0, -1)), 1.)


class _Line(NamedTuple):
  """The runs of a line."""
  scores: np.ndarray  # [parts, seeds]. The last part is the whole run.
  interval: intervals.Interval


def _make(key: str, paper: Paper, config: EvidenceConfig, folder: str) -> dict[str, _Line]:
  """Makes the runs of those lines of a study that a claim is about."""
  study = paper.studies[key]
  wanted = {line for claim in paper.claims if claim.study == key for line in (claim.first, claim.second)}
  config = dataclasses.replace(config, seeds=max(config.seeds, study.seeds))
  return {line: _Line(scores, intervals.interquartile_mean(scores[-1]))
          for line, scores in study.scores(config, folder, wanted).items()}


def _draw(studies: dict[str, dict[str, _Line]], file: str):
  """Draws a panel for each study: a line's seeds as points, their interquartile mean and its interval."""
  heights = [len(scores) for scores in studies.values()]
  picture, panels = drawing.grid(len(studies), 1, 8, 0.3 * sum(heights) + 0.9 * len(heights), heights=heights)
  for axes, (name, lines) in zip(panels[:, 0], studies.items(), strict=True):
    for row, (scores, (middle, low, high)) in enumerate(lines.values()):
      axes.plot(scores[-1], [row] * scores.shape[1], marker='o', markersize=3, linestyle='', color='#999999',
                label='a seed' if row == 0 else None)
      axes.errorbar(middle, row, xerr=[[middle - low], [high - middle]], fmt='D', markersize=4, capsize=3,
                    color=drawing.LINES[0], label='interquartile mean, 95 % interval' if row == 0 else None)
    axes.set_yticks(range(len(lines)), lines.keys())
    axes.set_ylim(len(lines) - 0.5, -0.5)  # The first line is at the top.
    axes.set_title(name, loc='left', fontsize=10)
    drawing.plain(axes, 'x')
  panels[-1, 0].set_xlabel('return / optimal return')
  drawing.title_and_legend(picture, 'Scores of runs', panels[:1, 0])
  drawing.save(picture, file)


def _section(name: str, paper: Paper, studies: dict[str, dict[str, _Line]],
             verdicts: Sequence[Sequence[Verdict]]) -> list[str]:
  """Returns the page's lines about a paper. The verdicts are those of each claim on each part of the runs."""
  lines = [f'## {paper.title}', '', f'![Scores of the runs]({name}.png)', '',
           '| claim | first | second | holds |', '|---|---|---|---|']
  for claim, (*_, verdict) in zip(paper.claims, verdicts, strict=True):
    first, second = ('{:.2f} ({:.2f} to {:.2f})'.format(*studies[claim.study][line].interval)
                     for line in (claim.first, claim.second))
    lines.append(f'| {claim.text} | {first} | {second} | {"yes" if verdict.holds else "**no**"}: {verdict.reason} |')
  lines += ['', 'The interquartile mean of the differences, paired by seed, in the first parts of the runs, in bold '
            'where the claim would hold:', '',
            f'| claim | {" | ".join(f"{part} of the frames" for part in _PARTS)} |', '|---' * (1 + len(_PARTS)) + '|']
  for claim, of_parts in zip(paper.claims, verdicts, strict=True):
    cells = (f'{"**" * verdict.holds}{verdict.difference:+.2f}{"**" * verdict.holds}, {verdict.reason}'
             for verdict in of_parts)
    lines.append(f'| {claim.text} | {" | ".join(cells)} |')
  lines.append('')
  for key, study in paper.studies.items():
    seeds = next(iter(studies[key].values())).scores.shape[1]
    measured = 'the whole run' if study.measured == 1 else f'its last {100 * study.measured:.0f} %'
    lines.append(f'- {key}: `scalable-agents {study.command} --seeds={seeds}`, {study.frames:,} environment frames '
                 f'per run. A score is the mean return over {measured}.')
  return [*lines, '']


def main():
  """Makes the runs, and writes the figures and the page."""
  config = run_flags.config_from_flags(EvidenceConfig)
  chosen = [name.strip() for name in config.papers.split(',')]
  if '' in chosen:
    raise errors.UserError(f'--papers={config.papers}: a name is empty: want some of {", ".join(PAPERS)}, separated by '
                           'commas')
  if unknown := [name for name in chosen if name not in PAPERS]:
    raise errors.UserError(f'--papers={config.papers}: unknown: {", ".join(unknown)}: want some of {", ".join(PAPERS)}')
  chosen = [name for name in PAPERS if name in chosen]  # Once each; the order says nothing.
  if config.broken_with and 'laser' in chosen:
    raise errors.UserError(f'--broken_with={config.broken_with}: runs of laser have no flags: leave it out of --papers')
  needed = [*_PACKAGES, *(_PACKAGES_OF_TASKS if 'r2d2' in chosen else [])]
  if lacking := [name for name in needed if not util.find_spec(name)]:
    raise errors.UserError(f'the claims need {", ".join(lacking)}: in a checkout, {sys.executable} -m pip install '
                           '-r requirements-plots.txt -r requirements-evidence.txt')
  intervals.interquartile_mean([0., 0.])  # Where rliable cannot be imported, this says so before any run.
  folder, sections, judged = files.make_folder(config.output), [], []
  for name in chosen:
    paper = PAPERS[name]
    studies = {key: _make(key, paper, config, os.path.join(folder, name)) for key in paper.studies}
    verdicts = [[judge(claim, first, second) for first, second in zip(
        studies[claim.study][claim.first].scores, studies[claim.study][claim.second].scores, strict=True)]
                for claim in paper.claims]
    _draw(studies, os.path.join(folder, f'{name}.png'))
    sections += _section(name, paper, studies, verdicts)
    of_whole_runs = [(claim, verdict) for claim, (*_, verdict) in zip(paper.claims, verdicts, strict=True)]
    for claim, verdict in of_whole_runs:
      print(f'{"holds" if verdict.holds else "FAILS"}  {claim.text} ({verdict.reason})', flush=True)
    judged += of_whole_runs
  failed = [claim.text for claim, verdict in judged if not verdict.holds]
  p_values = [verdict.p for _, verdict in judged if verdict.p is not None]
  commits = _commits([os.path.join(folder, name) for name in chosen])
  if len(commits) > 1:
    print(f'the runs are of several commits: {", ".join(commits)}; another --output makes all again')
  broken = f', all runs with {config.broken_with}' if config.broken_with else ''
  head = ['# Claims of the papers on small tasks', '',
          f'{len(judged) - len(failed)} of {len(judged)} claims hold. Commit {", ".join(commits)}, '
          f'{machine.num_cores()} cores of {machine.processor()}{broken}. The scores are interquartile means with 95 % '
          'intervals from a bootstrap over the seeds. A > B is judged by a one-sided Mann-Whitney test on the '
          'seeds. A claim that says "by seed" is judged by a one-sided Wilcoxon signed-rank test on the differences of '
          "runs with the same seed. Each test has its own p-value; with Holm's correction for "
          f'{len(p_values)} tests, {sum(holm(p_values) < _LARGEST_P)} have p < {_LARGEST_P:g}.', '']
  # The page of all papers is not replaced by that of some.
  page = os.path.join(folder, '_'.join(['evidence', *(chosen if set(chosen) < set(PAPERS) else [])]) + '.md')
  with run_directory.replaced(page) as new, open(new, 'w', encoding='utf-8') as stream:
    stream.write('\n'.join([*head, *sections]))
  print(f'wrote {page}')
  if failed:
    raise errors.UserError(f'{len(failed)} of {len(judged)} claims do not hold: {"; ".join(failed)}: see {page}')


def _commits(folders: Sequence[str]) -> list[str]:
  """Returns this process's commit, which runs of shared_replay always have, and those of the runs in these folders."""
  versions = [run_directory.read_config(os.path.dirname(file)).get('versions') or {}
              for folder in folders for file in glob.glob(os.path.join(glob.escape(folder), '*', 'config.json'))]
  return sorted({of_run.get('scalable_agents') or 'unknown' for of_run in [*versions, package_versions.installed()]})


if __name__ == '__main__':
  run_flags.define(EvidenceConfig())
  run_flags.run_main(main)
