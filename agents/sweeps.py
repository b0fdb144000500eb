"""The ranges that the papers' sweeps draw hyper-parameters from. The tables import this without TensorFlow."""

from scalable_agents.training import sweep

# Espeholt et al. 2018 (IMPALA), section 5.2 and table D.1: 24 samples. That they are drawn independently is ours.
IMPALA = sweep.Sweep({
    'learning_rate': sweep.LogUniform(5e-6, 5e-3),
    'entropy_cost': sweep.LogUniform(5e-5, 1e-2),
    'rmsprop_epsilon': sweep.Choice((1e-1, 1e-3, 1e-5, 1e-7)),
}, num_samples=24)

# Schmitt et al. 2020 (LASER), section 5.1, DMLab-30: 10 samples from IMPALA's ranges with a fixed epsilon of RMSProp.
# The sweep on Atari is a grid; see laser_sweep.py.
LASER = sweep.Sweep({name: IMPALA.ranges[name] for name in ('learning_rate', 'entropy_cost')}, num_samples=10)

# Ours: the paper has no sweep. A population draws its first members' settings from these ranges.
R2D2 = sweep.Sweep({
    'learning_rate': sweep.LogUniform(2e-5, 5e-4),
    'adam_epsilon': sweep.Choice((1e-2, 1e-3, 1e-4)),
}, num_samples=24)
