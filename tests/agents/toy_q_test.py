"""Tests that the toy agent learns catch through the real runtime, which must provide everything that it needs."""

import contextlib
import json
import os
import pathlib

from absl.testing import absltest

from scalable_agents.agents import train
from scalable_agents.processes import free_ports
from scalable_agents.tests.agents import toy_q
from scalable_agents.tests.training import training

_COMMON = (f'--agent={toy_q.__name__}:TOY_Q', '--level_name=catch', '--num_environment_workers=1',
           '--log_interval_seconds=0.5')


class ToyQTest(absltest.TestCase):

  def _start(self, stack, logdir, *flags):
    return stack.enter_context(training.Training(logdir, *_COMMON, *flags, program=train.__name__))

  def _evaluate(self, logdir, *flags):
    """Returns the mean return of greedy episodes."""
    with training.Training(logdir, *_COMMON, *flags, '--mode=test', '--test_num_episodes=100',
                           program=train.__name__) as test:
      self.assertEqual(test.end()[0], 0, test.screen())
    evaluation = json.loads(pathlib.Path(logdir, 'evaluation.json').read_text())
    self.assertEqual(evaluation['protocol']['actions'], 'greedy')
    return evaluation['levels']['catch']['mean']

  def test_learns_with_two_actor_processes_and_is_resumed_in_the_middle(self):
    port, = free_ports.find(1)
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    flags = (f'--learner_addresses=localhost:{port}', '--num_environments=8', '--total_environment_frames=16_000')
    with contextlib.ExitStack() as stack:
      start_learner = lambda: self._start(stack, logdir, *flags[:1], *flags[2:], '--job_name=learner',
                                          '--num_environments=0', '--checkpoint_interval_seconds=0.5')
      learner = start_learner()
      actors = [self._start(stack, logdir, *flags, '--job_name=actor', f'--task={task}') for task in range(2)]
      learner.wait_until(lambda: any(row['environment_frames'] > 5_000 for row in training.rows(logdir)), 'the middle')
      self.assertEmpty(learner.kill())  # The actor hosts wait for the learner to come back.
      middle = training.rows(logdir)[-1]['environment_frames']
      self.assertLess(middle, 16_000)
      learner = start_learner()
      self.assertEqual(learner.end()[0], 0, learner.screen())
      self.assertEqual([actor.end()[0] for actor in actors], [0, 0], actors[0].screen())
    rows = training.rows(logdir)
    resumed = next(row for row in rows if row['environment_frames'] > middle)
    self.assertEqual(resumed['replay_size'], min(500, resumed['environment_frames'] // 8))  # The replay was restored.
    last = rows[-1]
    self.assertEqual(last['replay_size'], 500)
    self.assertGreater(last['replay_priorities'], 300)  # Most unrolls have been sampled.
    self.assertGreater(last['mean_priority'], 0)
    # An unroll is learned from several times and counted once. Per update of 16 unrolls, 4 new ones of 8 steps arrive.
    self.assertEqual(last['environment_frames'], last['learner_steps'] * 4 * 8)
    self.assertEqual(last['episodes'], len(training.episodes(logdir)))
    self.assertGreater(self._evaluate(logdir, *flags[2:]), 0.9)


if __name__ == '__main__':
  absltest.main()
