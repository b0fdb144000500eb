"""Runs impala_atari57 in a network namespace, for cluster_training_test."""

import ctypes
import os

from scalable_agents.agents import train

NAMESPACE = 'TEST_NETWORK_NAMESPACE'  # The environment variable with the namespace's name.
_CLONE_NEWNET = 0x40000000

if __name__ == '__main__':
  with open(f'/run/netns/{os.environ[NAMESPACE]}', encoding='utf-8') as namespace:
    if ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNET):
      raise OSError('setns has failed')
  train.main('impala_atari57')
