"""One of several learner processes for learner_group_test. It learns from its part of random batches.

  python -m scalable_agents.tests.cluster.learner_process ADDRESSES TASK UPDATES FILE

Writes the values of its variables and the results of the last update to FILE, an .npz.
"""

import sys

import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import popart_impala
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.experience import intake
from scalable_agents.learner import learner_step
from scalable_agents.tests.training import unrolls
from scalable_agents.training import learner_group

BATCH_SIZE = 2  # Unrolls per learner and update.
LEVELS, LEVEL_IDS = ('catch', 'chain'), (0, 1, 1)  # PopArt's statistics depend on the order of the unrolls.
_MOST_EPISODES = 5
LEAVING_AT = 2  # The update at which the last learner wants to leave.


def config(task):
  """Returns the settings of a learner. Without `share` the learners would start with different parameters."""
  return configs.PopArtImpalaConfig(
      torso='shallow', total_environment_frames=10_000, rmsprop_epsilon=0.1, popart_decay=0.3, seed=task + 1)


def arrived(task, update, unroll):
  """Returns what arrived with a learner's batch. The first learner has no episodes, each further one has more."""
  count = task * update
  episodes = intake.Episodes(tf.where(tf.range(_MOST_EPISODES) < count, task, intake.NO_LEVEL),
                             tf.fill([_MOST_EPISODES], float(update)), tf.fill([_MOST_EPISODES], count))
  return intake.Arrived(tf.constant(BATCH_SIZE * 6 * 4, tf.int64), episodes, unroll.actor_id,
                        unroll.parameter_version[1:])


def main(addresses, task, updates, file):
  """Makes the updates and writes the results."""
  port = learner_port.LearnerPort(cluster_config.ClusterConfig('learner', addresses, task), {})
  together = learner_group.LearnerGroup(learner_port.make_strategy(1, port), '/CPU:0')
  num_learners = len(addresses.split(','))
  with together.scope():
    agent = popart_impala.Agent(unrolls.environment_spec(levels=LEVELS), config(task))
    learner = popart_impala.POPART_IMPALA.make_learner(agent, config(task), 'never')
  together.broadcast(learner.variables)
  for update in range(updates):
    unroll = unrolls.random_unroll(agent, batch=num_learners * BATCH_SIZE, seed=update, level_ids=LEVEL_IDS)
    batch = learner_step.Batch(unrolls.part(unroll, task, BATCH_SIZE))
    last = together.step(learner, [batch], [arrived(task, update, batch.unroll)],
                         task == num_learners - 1 and update == LEAVING_AT)
    print('updated', flush=True)
  np.savez(file, *(variable.numpy() for variable in learner.variables), level_ids=last.episodes.level_ids,
           returns=last.episodes.returns, lengths=last.episodes.lengths, leaving=last.leaving,
           **learner.read(last.metrics))


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
