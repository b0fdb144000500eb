"""What every metric of metrics.jsonl means, and its unit. docs/metrics.md is made from this table.

  python -m scalable_agents.records.metric_table > docs/metrics.md

The tests check that a run writes no metric that is missing here, and that the page is up to date. An agent outside this
repository may have metrics of its own.
"""

from typing import NamedTuple


class Metric(NamedTuple):
  """What a metric means."""
  unit: str     # '' for a plain number. The page then has a dash.
  meaning: str


TEXT = 'text'  # The unit of metrics that are text. All others are numbers, or None.

# By the part of a run that measures them. A name may end with /LEVEL, which stands for the name of any level, and
# actor/HOST/ stands for any actor host.
_SECTIONS: dict[str, dict[str, Metric]] = {
    'The run': {
        'environment_frames': Metric('environment frames', 'frames that the learner has received from the actors, over '
                                     'all restarts and levels: agent steps times action repeats'),
        'learner_steps': Metric('updates', 'updates that the learner has made, over all restarts'),
        'skipped_updates': Metric('updates', 'updates that were skipped over all restarts, because a number was not '
                                  'finite'),
        'wall_seconds': Metric('s', 'time since the start of the process, start-up included, over all restarts'),
        'frames_per_second': Metric('environment frames per second', 'frames received since the last row'),
        'memory_megabytes': Metric('MB', 'memory of the training process and its environment workers; what they share '
                                   'counts once'),
    },
    'Episodes': {
        'episodes': Metric('episodes', 'finished training episodes, over all restarts'),
        'episode_return': Metric('raw rewards', 'mean return of the last 100 training episodes; null before the first '
                                 'one has ended'),
        'episode_return/LEVEL': Metric('raw rewards', 'the same for the last 100 episodes of one level'),
        'episode_length': Metric('environment frames', 'mean length of the last 100 training episodes'),
        'suite_score': Metric('%', 'human-normalised score of training episodes: 100 (score - random) / (human - '
                              'random) of each level, summarised as the papers do for the suite: the median for '
                              'atari57, the mean capped at 100 % for dmlab30. Computed when every level has new '
                              'episodes'),
        'suite_score/median': Metric('%', 'median over levels of the human-normalised score'),
        'suite_score/mean': Metric('%', 'mean over levels of the human-normalised score'),
        'suite_score/mean_capped': Metric('%', 'the same, with scores above 100 % counted as 100 %'),
        'suite_score/above_human': Metric('levels', 'levels with a human-normalised score above 100 %'),
    },
    'Updates: means since the last row': {
        'loss/total': Metric('', 'the loss that is minimised: the sum of its terms with their weights'),
        'loss/policy_gradient': Metric('', 'policy gradient term, a sum over steps and batch'),
        'loss/baseline': Metric('', 'baseline term before its weight --baseline_cost, a sum over steps and batch'),
        'loss/entropy': Metric('nats', 'negative entropy of the policy before its weight --entropy_cost, a sum over '
                               'steps and batch; of LASER over the steps of --entropy_steps'),
        'loss/pixel_control': Metric('', 'pixel control term before its weight --pixel_control_cost'),
        'loss/td': Metric('', 'R2D2: half of the squared TD errors, weighted by importance: a sum over the steps of a '
                          'sequence, a mean over sequences'),
        'grad_norm': Metric('', 'global norm of the gradient, before clipping'),
        'learning_rate': Metric('', 'learning rate of the update'),
        'policy_lag': Metric('updates', 'updates between the parameters that chose an action and the update that '
                             'learned from it. With --shared_replay it means nothing, because agents count their own '
                             'updates'),
        'value': Metric('', 'R2D2: mean Q-value of the trained steps, over all actions, rescaled as the network '
                        'has it'),
        'priority': Metric('', 'R2D2: mean new priority of the sampled sequences'),
        'replay_age': Metric('batches', 'R2D2: batches sampled since a sampled sequence was inserted, on average'),
        'delta_q/first': Metric('', 'R2D2 with --measure_delta_q: the discrepancy of Q-values (section 3) at the first '
                                'trained step'),
        'delta_q/last': Metric('', 'the same at the last trained step'),
        'popart/mean/LEVEL': Metric('rewards', "PopArt: mu, the mean of the level's value targets, before the update"),
        'popart/scale/LEVEL': Metric('rewards', 'PopArt: sigma, their standard deviation, before the update'),
        'value_loss/normalized/LEVEL': Metric('', 'PopArt: value loss per rollout of the level, with normalised '
                                              'values'),
        'value_loss/unnormalized/LEVEL': Metric('rewards squared', 'PopArt: the same with un-normalised values'),
        'rejected/online': Metric('share', 'LASER: new steps that the trust region leaves out'),
        'rejected/replayed': Metric('share', 'LASER: replayed steps that the trust region leaves out'),
        'relevance/online': Metric('nats', "LASER: mean of the divergence that is compared with the trust region's "
                                   'threshold, of new steps'),
        'relevance/replayed': Metric('nats', 'the same of replayed steps'),
    },
    'Where the time goes': {
        'bottleneck': Metric(TEXT, 'the part that was busy for the largest share of the time: environments, inference, '
                             'learner, actors (in other processes), other jobs (of other programs), or what '
                             '--shared_replay waits for'),
        'time/learner_waits': Metric('share', 'the learner waited for data'),
        'time/queue_full': Metric('share', 'the queue was full, so that actors waited'),
        'time/inference_idle': Metric('share', 'inference had nothing to do'),
        'time/environments_stepping': Metric('share', 'environments were stepping'),
        'inference_batch_size': Metric('environments', 'mean size of a batch of inference'),
        'queue_size': Metric('unrolls', 'unrolls in the queue now'),
        'environment_restarts': Metric('workers', 'environment workers that were replaced, over all restarts'),
    },
    'The replay': {
        'replay_size': Metric('', 'what is in the replay now: sequences (R2D2), agent steps (LASER, IMPALA)'),
        'replay_filled': Metric('share', 'replay_size as a share of --replay_minimum_size, at most 1; below 1, no '
                                'update is made'),
        'replay_episodes': Metric('episodes', 'episodes in the replay now'),
        'replay_megabytes': Metric('MB', 'memory of the rows in the replay'),
        'replay_gaps': Metric('', 'streams (R2D2) or episodes (LASER) that ended early because unrolls were lost, '
                              'since the last start. With a shared replay: of all agents, since its last start'),
        'replay_long_episodes': Metric('episodes', 'episodes of more than 27,000 agent steps, which are not replayed; '
                                       'of all agents, since the last start'),
        'replay_stale_updates': Metric('', 'priorities that came for items that had left the replay, since the '
                                       'last start'),
        'replay_lead': Metric('agent steps', 'with --shared_replay: agent steps by which this agent is ahead of the '
                              'slowest one'),
        'replay_waits_for': Metric(TEXT, 'with --shared_replay, what the agent waits for: other agents, which are '
                                   'slower, or replay, whose process does not answer. The bottleneck is then the same'),
        'sequences_inserted': Metric('sequences', 'sequences inserted so far; saved with the replay'),
        'sequences_sampled': Metric('sequences', 'sequences sampled so far; saved with the replay'),
        'unrolls_replayed': Metric('unrolls', 'unrolls that the replay has given out, to all agents if it is shared; '
                                   'without a saved replay, since the last start'),
    },
    'A cluster': {
        'unrolls_missing': Metric('unrolls', 'unrolls that did not arrive, although a later one of the same stream '
                                  'did, since the run began'),
        'unrolls_late': Metric('unrolls', 'unrolls that arrived after a later one of the same stream, or twice. They '
                               'are not used'),
        'actor_hosts': Metric('processes', 'actor hosts of this learner that have reported in the last 20 seconds. '
                              'Those of other learners are in LOGDIR_learner_1 and so on'),
        'actor/HOST/frames_per_second': Metric('environment frames per second', 'frames that this host plays'),
        'actor/HOST/megabytes_per_second': Metric('MB/s', 'unrolls that it sends plus parameters that it fetches'),
        'actor/HOST/policy_lag': Metric('updates', 'mean age of the parameters that its unrolls were played with'),
        'actor/HOST/reconnects': Metric('connections', 'connections after the first one'),
        'actor/HOST/environment_restarts': Metric('workers', 'its environment workers that were replaced'),
        'actor/HOST/lost_unrolls': Metric('unrolls', 'unrolls that were being sent when a connection broke. They may '
                                          'have arrived'),
    },
    'A population': {
        'fitness': Metric('points', 'the last measured fitness of this member: its mean capped human-normalised '
                          'score in %. On one level it is not capped, and without human scores it is 100 times the '
                          'mean return'),
        'entropy_cost': Metric('', 'its present value, if populations tune it'),
        'rmsprop_epsilon': Metric('', 'its present value, if populations tune it'),
        'adam_epsilon': Metric('', 'its present value, if populations tune it'),
        'clip_gradient_norm': Metric('', 'its present value, if populations tune it'),
    },
}
_METRICS = {name: metric for section in _SECTIONS.values() for name, metric in section.items()}
TEXTS = frozenset(name for name, metric in _METRICS.items() if metric.unit == TEXT)

_INTRODUCTION = '''\
`metrics.jsonl` in a run directory has a JSON object for each log interval. TensorBoard shows the same values. `null`
stands for a value that does not exist yet. A share is a number from 0 to 1. A dash stands for a number without a unit.
LEVEL is the name of a level, and HOST that of an actor host.'''


def find(name: str) -> Metric | None:
  """Returns what a metric of metrics.jsonl means; None if it is not in the table."""
  if name in _METRICS:
    return _METRICS[name]
  if name.startswith('actor/'):
    return _METRICS.get(f'actor/HOST/{name.rpartition("/")[2]}')
  # The name of a level may contain slashes.
  return next((metric for known, metric in _METRICS.items()
               if known.endswith('/LEVEL') and name.startswith(known.removesuffix('LEVEL'))), None)


def page() -> str:
  """Returns docs/metrics.md."""
  lines = ['# Metrics', '', _INTRODUCTION, '', '<!-- Made by: python -m scalable_agents.records.metric_table -->']
  for title, metrics in _SECTIONS.items():
    lines += ['', f'## {title}', '', '| metric | unit | meaning |', '|---|---|---|']
    lines += [f'| `{name}` | {metric.unit or "–"} | {metric.meaning} |' for name, metric in metrics.items()]
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  print(page(), end='')
