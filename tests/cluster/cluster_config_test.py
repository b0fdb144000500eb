"""A process's role in a cluster: its settings, the numbers of hosts and the ids of actors."""

import re

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.cluster import cluster_config
from scalable_agents.processes import ports


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(), dict(job_name='learner', learner_addresses='localhost:1'), dict(num_learners=3),
      dict(job_name='actor', learner_addresses='10.0.0.1:65535', parameter_refresh='1_000',
           parameters_from='10.0.0.2:5001', relay_port=5001, parameter_precision='bfloat16'),
      dict(job_name='actor', learner_addresses='a:80,b:80', task=cluster_config.MAX_HOSTS // 4 - 1),
      dict(job_name='learner', learner_addresses='a:80,b:80,a:81', task=1, learner_timeout_seconds=1))
  def test_what_is_allowed(self, **settings):
    cluster_config.validate(cluster_config.ClusterConfig(**settings))

  @parameterized.parameters(
      (dict(job_name='boss', learner_addresses='a:80'), '--job_name=boss: want one of learner, actor'),
      (dict(job_name='actor'), '--learner_addresses=: want HOST:PORT of the learner together with --job_name, .*'),
      (dict(learner_addresses='a:80'), '--learner_addresses=a:80: want HOST:PORT .* neither of them on a .*'),
      (dict(job_name='actor', learner_addresses='a'), '--learner_addresses=a: want HOST:PORT'),
      (dict(job_name='actor', learner_addresses='a:80,'), '--learner_addresses=: want HOST:PORT'),
      (dict(job_name='actor', learner_addresses='a:80,b:x'), '--learner_addresses=b:x: want HOST:PORT'),
      (dict(task=-2), '--task=-2: want a whole number from -1 to [0-9]+'),
      (dict(task=1), '--task=1: want it only with --job_name'),
      (dict(task=cluster_config.MAX_HOSTS // 4), '--task=[0-9]+: want a whole number from -1 to [0-9]+'),
      (dict(job_name='learner', learner_addresses='a:80,b:80', task=2), '--task=2: want the number of one of .*'),
      (dict(job_name='learner', learner_addresses='a:80,b:80'), '--task=-1: want the number of this learner in .*'),
      (dict(job_name='actor', learner_addresses='a:80,b:80,a:80'),
       '--learner_addresses=a:80,b:80,a:80: want a different address for each learner'),
      (dict(job_name='learner', learner_addresses='Node:80,node:080', task=0), '--learner_addresses=.*: want a diff.*'),
      (dict(learner_timeout_seconds=0), '--learner_timeout_seconds=0: want a whole number from 1 to 86400'),
      (dict(num_learners=0), '--num_learners=0: want a whole number from 1 to 64'),
      (dict(parameter_refresh='0'),
       '--parameter_refresh=0: want auto, paper, unroll, or a number of agent steps from 1 to 1000000'),
      (dict(parameter_refresh='1_000_001'), '--parameter_refresh=1_000_001: want auto, paper, unroll, .*'),
      (dict(parameter_refresh='-1'), '--parameter_refresh=-1: want auto, paper, unroll, .*'),
      (dict(parameter_refresh='often'), '--parameter_refresh=often: want auto, paper, unroll, .*'),
      (dict(parameter_precision='float16'), '--parameter_precision=float16: want one of float32, bfloat16'),
      (dict(relay_port=80), '--relay_port=80: want it only with --job_name=actor'),
      (dict(job_name='learner', learner_addresses='a:80', parameters_from='b:80'),
       '--parameters_from=b:80: want it only with --job_name=actor'),
      (dict(job_name='actor', learner_addresses='a:80', parameters_from='b'), '--parameters_from=b: want HOST:PORT'),
      (dict(job_name='actor', learner_addresses='a:80,b:80', parameters_from='B:080'),
       '--parameters_from=B:080: want the address of an actor host with --relay_port, not of a learner'),
      (dict(job_name='actor', learner_addresses='a:80', relay_port=70_000),
       '--relay_port=70000: want a whole number from 0 to 65535'))
  def test_what_is_not(self, settings, message):
    with self.assertRaisesRegex(ValueError, f'^{message}$'):
      cluster_config.validate(cluster_config.ClusterConfig(**settings))

  @parameterized.parameters(
      ('auto', '', 0), ('auto', 'learner', 0), ('auto', 'actor', 100), ('paper', '', 100), ('paper', 'actor', 100),
      ('unroll', '', 20), ('7', 'learner', 7), ('7', 'actor', 7))
  def test_steps_between_refreshes(self, refresh, job, steps):
    config = cluster_config.ClusterConfig(parameter_refresh=refresh, job_name=job)
    self.assertEqual(cluster_config.refresh_steps(config, papers=100, unroll_length=20), steps)

  @parameterized.parameters(('host:80', 'host', 80), ('10.0.0.1:65535', '10.0.0.1', 65535), ('[::1]:1', '[::1]', 1))
  def test_split_address(self, address, host, port):
    self.assertEqual(ports.split_address(address), (host, port))

  @parameterized.parameters('host', 'host:', ':80', 'host:0', 'host:65536', 'host:-1', 'host:port', '', ' host:80')
  def test_split_address_of_something_else(self, address):
    with self.assertRaisesRegex(ValueError, f'^{address}: want HOST:PORT$'):
      ports.split_address(address)

  @parameterized.parameters('::1:80', 'fe80::1:80', '[::1:80', '::1]:80')
  def test_an_ipv6_address_needs_brackets(self, address):
    with self.assertRaisesRegex(ValueError, f'^{re.escape(address)}: want .HOST.:PORT, with the IPv6 address in br'):
      ports.split_address(address)


class NumbersTest(parameterized.TestCase):

  @parameterized.parameters(('learner', -1, 0), ('learner', 1, 1), ('actor', 0, 2), ('actor', 7, 9))
  def test_of_hosts(self, job, task, number):
    self.assertEqual(cluster_config.host_number(cluster_config.ClusterConfig(job, 'a:80,b:80', task)), number)
    self.assertEqual(cluster_config.host_number(cluster_config.ClusterConfig()), 0)

  def test_those_that_are_drawn_differ_from_each_other_and_from_those_given(self):
    given = cluster_config.host_number(
        cluster_config.ClusterConfig('actor', ','.join(['a:80'] * 100), cluster_config.MAX_HOSTS // 4 - 1))
    drawn = {cluster_config.host_number(cluster_config.ClusterConfig('actor', 'a:80')) for _ in range(20)}
    self.assertGreater(len(drawn), 18)  # Two of 20 numbers are equal in one of 1,400 runs.
    self.assertGreater(min(drawn), given)
    self.assertLess(max(drawn), cluster_config.MAX_HOSTS)

  def test_the_last_actor_of_the_last_host_has_an_id(self):
    last = cluster_config.first_actor_id(cluster_config.MAX_HOSTS - 1) + cluster_config.MAX_ENVIRONMENTS - 1
    self.assertEqual(last, np.iinfo(np.int32).max)
    self.assertEqual(cluster_config.first_actor_id(0), 0)

  @parameterized.parameters((range(4), 64, 256), (range(1, 5), 64, 256), (range(2, 5), 5, 15), ([7], 8, 8))
  def test_hosts_of_the_same_size_have_each_place_once(self, hosts, num_environments, num_actors):
    rungs = []
    for host in hosts:  # Host 0 is a learner that acts.
      offset = cluster_config.place_offset(host, num_environments, num_actors)
      rungs += np.floor((np.arange(num_environments) + offset) / num_environments * num_actors).tolist()
    self.assertCountEqual(rungs, range(num_actors))

  @parameterized.parameters((64, 0), (64, 100), (64, 32))
  def test_without_the_number_of_hosts_there_is_no_offset(self, num_environments, num_actors):
    self.assertIsNone(cluster_config.place_offset(1, num_environments, num_actors))

  def test_names(self):
    self.assertEqual(cluster_config.host_name(3, 7), 'task_3')
    self.assertRegex(cluster_config.host_name(-1, 40_000), '^.+-40000$')


if __name__ == '__main__':
  absltest.main()
