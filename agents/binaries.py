"""The programs of all agents, as launchers take them: agents/population.py and tools/local_cluster.py.

Launchers import this without TensorFlow.
"""

NAMES = ('impala_atari57', 'impala_dmlab30', 'laser_atari57', 'laser_dmlab30', 'popart_impala_atari57',
         'popart_impala_dmlab30', 'r2d2_atari57', 'r2d2_dmlab30', 'r2d2_plus_dmlab30')
