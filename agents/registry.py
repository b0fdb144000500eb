"""The registry: every agent and every preset. docs/agents.md says what else a new one needs.

Binaries, launchers, tables, the benchmark and the contract test read it. An agent outside this repository needs no
line: `find` also takes 'module:NAME'. This module does not import TensorFlow.
"""

import dataclasses
from typing import Any

from scalable_agents.agents import configs
from scalable_agents.environments import dmlab30
from scalable_agents.environments import user_modules
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.launch import preset
from scalable_agents.records import errors
from scalable_agents.training import run_config

_HERE = 'scalable_agents.agents'
AGENTS = {  # By the name of the definition.
    'impala': f'{_HERE}.impala:IMPALA',
    'a2c': f'{_HERE}.a2c:A2C',
    'a3c': f'{_HERE}.a3c:A3C',
    'popart_impala': f'{_HERE}.popart_impala:POPART_IMPALA',
    'r2d2': f'{_HERE}.r2d2:R2D2',
    'laser': f'{_HERE}.laser:LASER',
}


def _converted(config_class: type, config: Any, **changes: Any) -> Any:
  """Returns a config of a class with the values of `config` for the settings that both have, and changes."""
  shared = {field.name for field in dataclasses.fields(config_class)}
  return config_class(**{name: value for name, value in dataclasses.asdict(config).items() if name in shared} | changes)


_IMPALA_DMLAB30 = configs.ImpalaConfig(
    level_name='dmlab30',
    total_environment_frames=10_000_000_000,  # Released code. The paper does not state it.
    use_lstm=True,
    unroll_length=100,                        # Table D.3.
    batch_size=32,                            # Table 1.
    entropy_cost=0.0033391318945337044,       # Released code: the best of a sweep over table D.1's ranges.
    reward_transform='soft_asymmetric',       # Released code; figure D.1 has optimistic_asymmetric.
    learning_rate=0.00031866995608948655,     # Released code, like entropy_cost.
    rmsprop_epsilon=0.1,                      # Released code: one of table D.1's four values.
    clip_gradient_norm=0.,                    # Neither table D.3 nor the released code clips.
)
# A reset that compiles a map may take half a minute, and longer if many maps are compiled at once.
_DMLAB30_RUN = run_config.RunConfig(environment_timeout_seconds=300., test_num_episodes=dmlab30.SUITE.test_episodes)
_LARGE_ACTION_SET = dmlab30_protocol.Protocol(action_set='popart')  # Hessel et al. 2019, "DmLab-30".
_POPART_DMLAB30 = _converted(configs.PopArtImpalaConfig, _IMPALA_DMLAB30)
_REPLAY_SAVE_SECONDS = 600.  # Between two checkpoints, because the replay is saved with each.
_R2D2_DMLAB30 = preset.Preset(
    AGENTS['r2d2'],
    configs.R2d2Config(
        level_name='rooms_watermaze',
        samples_per_period=1.54),  # Section 2.3: an actor makes half as many steps per second as on Atari.
    _LARGE_ACTION_SET,  # Sections 2.3 and 4.2.
    dataclasses.replace(_DMLAB30_RUN, checkpoint_interval_seconds=_REPLAY_SAVE_SECONDS))

PRESETS = {  # By the name of the binary.
    'impala_atari57': preset.Preset(AGENTS['impala'], configs.ImpalaConfig(), atari57_protocol.Protocol()),
    'impala_dmlab30': preset.Preset(AGENTS['impala'], _IMPALA_DMLAB30, dmlab30_protocol.Protocol(), _DMLAB30_RUN),
    'a2c_atari57': preset.Preset(AGENTS['a2c'], configs.A2cConfig(), atari57_protocol.Protocol()),
    'a2c_dmlab30': preset.Preset(
        AGENTS['a2c'],
        _converted(configs.A2cConfig, _IMPALA_DMLAB30, torso='shallow'),  # Section 5.1, table 1 and figure 4.
        dmlab30_protocol.Protocol(), _DMLAB30_RUN),
    'a3c_atari57': preset.Preset(AGENTS['a3c'], configs.A3cConfig(), atari57_protocol.Protocol()),
    'a3c_dmlab30': preset.Preset(
        AGENTS['a3c'],
        _converted(configs.A3cConfig, _IMPALA_DMLAB30, batch_size=1),
        dmlab30_protocol.Protocol(), _DMLAB30_RUN),
    'popart_impala_atari57': preset.Preset(
        AGENTS['popart_impala'],
        configs.PopArtImpalaConfig(
            level_name='atari57',
            total_environment_frames=11_400_000_000,  # "Atari-57 results": 57 games of 200 million frames.
            reward_transform='none',                  # Figure 2. Figure 1 has clipped rewards: abs_one.
        ),
        atari57_protocol.Protocol()),
    'popart_impala_dmlab30': preset.Preset(
        AGENTS['popart_impala'], _POPART_DMLAB30, _LARGE_ACTION_SET, _DMLAB30_RUN,
        population_size=8),  # "Implementation notes".
    'r2d2_atari57': preset.Preset(
        AGENTS['r2d2'],
        configs.R2d2Config(),
        atari57_protocol.Protocol(episode_end_on_life_loss=False, full_action_set=True),  # Section 2.3, appendix.
        run_config.RunConfig(checkpoint_interval_seconds=_REPLAY_SAVE_SECONDS)),
    'r2d2_dmlab30': _R2D2_DMLAB30,
    'r2d2_plus_dmlab30': dataclasses.replace(_R2D2_DMLAB30, config=dataclasses.replace(
        _R2D2_DMLAB30.config,
        torso='deep',                              # The 15-layer ResNet of IMPALA.
        reward_transform='optimistic_asymmetric',  # Table 3: that of figure D.1 of the IMPALA paper.
        batch_size=32,
        samples_per_period=0.77,                   # If the learner makes five updates per second, as that of R2D2.
        target_update_interval=400,
    )),
    'laser_atari57': preset.Preset(
        AGENTS['laser'],
        configs.LaserConfig(
            torso='deep_4x',
            unroll_length=19,
            batch_size=160,                # 32 new unrolls and 128 replayed ones.
            replay_share=0.8,
            discount=0.995,
            clip_gradient_norm=0.,
            learning_rate_decay=False,
            value_normalization='none',    # Only the agent for DMLab-30 has PopArt.
        ),
        atari57_protocol.Protocol(noop_max=37),  # Appendix D.
        run_config.RunConfig(checkpoint_interval_seconds=_REPLAY_SAVE_SECONDS)),
    'laser_dmlab30': preset.Preset(
        AGENTS['laser'],
        _converted(
            configs.LaserConfig, _POPART_DMLAB30,
            use_pixel_control=True,
            unroll_length=79,
            batch_size=256,              # 32 new unrolls, as IMPALA has, and 224 replayed ones: 7/8 (figures 2 and 3).
            replay_share=0.875,
            replay_capacity=10_000_000,
        ),
        _LARGE_ACTION_SET,
        dataclasses.replace(_DMLAB30_RUN, checkpoint_interval_seconds=_REPLAY_SAVE_SECONDS),
        population_size=10),  # Section 5.1: regular sweeps and populations on DMLab-30 have 10 agents.
}


def find(name: str) -> preset.Preset:
  """Returns a preset.

  Args:
    name: one of PRESETS; or 'module:NAME' of a Preset, or of a Definition, which gets the defaults of its config class
      and the protocol of Atari. The module is also looked for in the current folder.
  Raises:
    errors.UserError: there is none of this name. The message is one line.
    Exception: what the module raises when it is imported, unless it needs a module that is not there.
  """
  if name in PRESETS:
    return PRESETS[name]
  module, _, variable = name.partition(':')
  if not all([*module.split('.'), variable]):
    raise errors.UserError(_unknown(name))
  with errors.of_user(ImportError, prefix=f'{_unknown(name)}: '):
    imported = user_modules.import_module(module)
  try:
    found = getattr(imported, variable)
    if isinstance(found, preset.Preset):
      return found
    return preset.Preset(name, found.config(), atari57_protocol.Protocol())
  except (AttributeError, TypeError, ValueError) as error:
    raise errors.UserError(f'{_unknown(name)} ({error})') from error


def check_name(name: str) -> None:
  """Raises ValueError, with one line, unless the name is a preset or has the form module:NAME. Imports no agent."""
  if name not in PRESETS and ':' not in name:
    raise ValueError(_unknown(name))


def _unknown(name):
  return f'--agent={name}: want module:NAME or one of {", ".join(PRESETS)}'


def command(name: str) -> list[str]:
  """Returns the arguments after `python` that start the program of a preset; see `find`."""
  if name in PRESETS:
    return ['-m', f'{_HERE}.{name}']
  return ['-m', f'{_HERE}.train', f'--agent={name}']
