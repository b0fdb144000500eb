"""Every setting of every program refuses what it cannot be, in one line: found among the modules, not listed here."""

import dataclasses
import functools
import importlib
import math
import os
import typing

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.tests import source_tree
from scalable_agents.tests.training import training
from scalable_agents.training import run_config

_NEVER_A_NUMBER = ('-1e30', '-inf', 'nan', '-nan', '', ' ', 'abc', '1x', '1,5', '1 2', '--', '0x', '\u0663x', 'None',
                   '[1]', 'e5', '1\n2', '\udcff')
_NUMBERS = (*_NEVER_A_NUMBER, '-1', '-0.0', '0', '1e-400', '1e-300', '1e-45', '0.5', '0.99999999999', '1',
            '1.00000000001', '7', '1e3', '1_0', '1e8', '100000000', '1e9', str(2**31), str(2**63), '1' + 25 * '0',
            '1' + 400 * '0', '1' + 5000 * '0', '1e25', '1e38', '1e39', '1e400', 'inf', '-', 'auto', 'true', '\n')
_TEXTS = ('', ' ', 'a\nb', '%s', '{}', '\x00', 'no such thing', 100_000 * 'x', 'caf\u00e9', '/tmp/\udcff', '\udc80')
_BOOLEANS = ('maybe', '2', '-1', 'nan', '\udcff')
_LONGEST_LINE = 1_000


def _configs():
  """Class -> its module, of all configs with settings that there are."""
  found = {}
  for path, source in source_tree.texts('*.py').items():
    if not path.startswith('tests/') and 'settings import setting\n' in source:
      module = importlib.import_module('scalable_agents.' + path.removesuffix('.py').replace('/', '.'))
      for value in vars(module).values():
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__:
          found[value] = module
  return found


_CONFIGS = _configs()
_FIELDS = [(config, field, typing.get_type_hints(config)[field.name])
           for config in _CONFIGS for field in dataclasses.fields(config)]


def _with(config, **values):
  """A config of a class, with a value where the default is none."""
  made = {field.name: (field.metadata['choices'] or ('a folder',))[0] for field in dataclasses.fields(config)
          if field.metadata['choices'] and field.default not in field.metadata['choices']
          or field.metadata['required'] and not field.default}
  return config(**made | values)


def _read(config, name, text):
  """What a program makes of --name=text: the setting. Raises flags.Error or errors.UserError."""
  flag_values = _flag_values(config)
  try:
    flag_values(['program', f'--{name}={text}'])
    return getattr(run_flags.config_from_flags(config, flag_values=flag_values), name)
  finally:
    flag_values[name].unparse()


@functools.cache
def _flag_values(config):
  flag_values = flags.FlagValues()
  run_flags.define(_with(config), flag_values)
  return flag_values


class EverySettingTest(parameterized.TestCase):

  def test_the_configs_are_found(self):
    self.assertContainsSubset({
        'ImpalaConfig', 'RunConfig', 'ClusterConfig', 'PopulationConfig', 'LauncherConfig', 'TablesConfig',
        'PopulationFigureConfig', 'LocalClusterConfig', 'Protocol', 'BenchmarkConfig', 'MultiTaskConfig',
        'ClusterScalingConfig', 'PopArtImpalaConfig', 'RewardScalesConfig', 'R2d2Config', 'HistoryConfig',
        'LaserConfig', 'ReplayConfig', 'SweepConfig'},
        {config.__name__ for config in _CONFIGS})

  def test_numbers_have_bounds(self):
    for config, field, kind in _FIELDS:
      bounds = field.metadata['bounds']
      if kind in (int, settings.Count):
        self.assertNotIn(None, (bounds.at_least, bounds.at_most), f'{config.__name__}.{field.name}: want both bounds')
        self.assertLess(bounds.at_most, 2**62)
      elif kind is float:
        lower = [bound for bound in (bounds.at_least, bounds.more_than) if bound is not None]
        self.assertLen(lower, 1, f'{config.__name__}.{field.name}: want a lower bound')

  def test_defaults_are_allowed(self):
    for config in _CONFIGS:
      settings.check(_with(config))

  def test_extremes_are_accepted_or_refused_in_one_line(self):
    for config, field, kind in _FIELDS:
      for text in _BOOLEANS if kind is bool else _TEXTS if kind is str else _NUMBERS:
        what = f'{config.__name__}.{field.name}: {text[:30]!r}'
        try:
          value = _read(config, field.name, text)
        except (flags.Error, errors.UserError) as error:
          self.assertRegex(str(error), f'^(flag )?--{field.name}=', what)
          self.assertLess(len(str(error)), _LONGEST_LINE + 6_000 * isinstance(error, flags.Error), what)
          if isinstance(error, errors.UserError):
            self.assertNotIn('\n', str(error), what)
            str(error).encode()
        else:
          self._check_possible(value, kind, field.metadata, text, what)

  def _check_possible(self, value, kind, metadata, text, what):
    """Checks that a program can use an accepted value."""
    self.assertIsNot(kind, bool, what)
    if isinstance(value, str):
      value.encode()
      self.assertTrue(value == 'auto' or not metadata['choices'] or value in metadata['choices'], what)
      return
    self.assertNotIn(text, _NEVER_A_NUMBER, what)
    bounds = metadata['bounds']
    if kind is float:
      with np.errstate(all='ignore'):
        number = np.float32(value)
      self.assertTrue(np.isfinite(number) or bounds.at_most == math.inf, what)
      self.assertTrue(value == 0 or abs(number) >= np.finfo(np.float32).tiny, what)
      value = number
    self.assertFalse(bounds.at_least is not None and value < bounds.at_least, what)
    self.assertFalse(bounds.more_than is not None and value <= bounds.more_than, what)
    self.assertFalse(bounds.at_most is not None and value > bounds.at_most, what)
    self.assertFalse(bounds.less_than is not None and value >= bounds.less_than, what)

  def test_other_types_are_refused(self):
    others = {bool: (0, 1, 'true', None, []), int: (True, 1.0, '1', None, [1], {}, math.nan),
              float: (True, '1', 'inf', None, [0.5], {}, math.nan, -10**400),
              str: (0, True, None, ['pong'], {}, 'a\0b'),
              settings.Count: (True, 1.0, '1', None, [], 'all')}
    for config, field, kind in _FIELDS:
      for value in others[kind]:
        with self.assertRaisesRegex(ValueError, f'^--{field.name}=.*: want ', msg=(field.name, value)):
          settings.check(_with(config, **{field.name: value}))

  def test_the_modules_own_checks_look_at_all_settings(self):
    checked = []
    for config, module in _CONFIGS.items():
      agent = config.__name__.removesuffix('Config').lower()
      validate = getattr(module, 'validate', None) or getattr(module, f'validate_{agent}', None)
      if validate and validate.__annotations__['config'] is config:
        checked.append(config.__name__)
        for field in dataclasses.fields(config):
          with self.assertRaisesRegex(ValueError, f'^--{field.name}=None: want '):
            validate(_with(config, **{field.name: None}))
    self.assertContainsSubset({'A2cConfig', 'ImpalaConfig', 'LaserConfig', 'R2d2Config', 'ClusterConfig',
                               'SweepConfig', 'LauncherConfig', 'PlayConfig', 'TablesConfig'}, checked)


class MessagesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('rmsprop_decay', 0.99999999999, 'a number of at least 0 and less than 1; in float32 this is 1'),
      ('learning_rate', 1e39, 'a finite number of at least 0; in float32 this is inf'),
      ('clip_gradient_norm', 1e-300, 'a finite number of at least 0; in float32 this is 0'),
      ('clip_c_threshold', -1.0, 'a number of at least 0, or inf'),
      ('discount', 1.5, 'a number from 0 to 1'),
      ('use_lstm', 1, 'true or false'),
      ('level_name', ['pong'], 'text in UTF-8'))
  def test_what_is_wanted(self, name, value, wanted):
    with self.assertRaises(ValueError) as caught:
      settings.check(configs.ImpalaConfig(**{name: value}))
    self.assertEqual(str(caught.exception), f'--{name}={value}: want {wanted}')

  @parameterized.parameters(
      (int, dict(at_least=1), 0, 'a whole number of at least 1'),
      (int, dict(at_least=1), 2**63, 'a whole number of at least 1, of at most 64 bits'),
      (int, {}, -2**63 - 1, 'a whole number, of at most 64 bits'),
      (int, dict(at_most=9), 10, 'a whole number of at most 9'),
      (settings.Count, dict(at_least=1), 0, 'auto, or a whole number of at least 1'),
      (float, {}, math.inf, 'a finite number'),
      (float, dict(less_than=1), 1.0, 'a finite number of less than 1'),
      (float, dict(at_most=math.inf), math.nan, 'a number, or inf'),
      (float, dict(more_than=0, at_most=1), 0.0, 'a number of more than 0 and at most 1'))
  def test_an_agents_own_setting_needs_no_bounds(self, kind, bounds, value, wanted):
    config = dataclasses.make_dataclass('Config', [('size', kind, settings.setting(5, 'Help.', **bounds))])
    with self.assertRaises(ValueError) as caught:
      settings.check(config(size=value))
    self.assertEqual(str(caught.exception), f'--size={value}: want {wanted}')

  def test_a_field_without_a_help_text_is_named(self):
    config = dataclasses.make_dataclass('Config', [('size', int, 5)])
    for use in (settings.check, settings.free_settings, settings.portable,
                lambda own: run_flags.define(own, flags.FlagValues())):
      with self.assertRaisesRegex(TypeError, r'^Config\.size: want settings\.setting\(default, help\) as its value$'):
        use(config())

  def test_a_required_text_may_not_be_empty(self):
    config = dataclasses.make_dataclass(
        'Config', [('folder', str, settings.setting('', 'Help.', required='a folder'))])
    settings.check(config(folder='x'))
    with self.assertRaisesRegex(ValueError, '^--folder=: want a folder$'):
      settings.check(config())

  def test_values_that_float32_can_hold(self):
    settings.check(configs.ImpalaConfig(
        learning_rate=3e38, rmsprop_decay=0.9999999, discount=0.99999999999, clip_rho_threshold=1e39, entropy_cost=1))

  def test_what_cannot_be_shown_as_it_is(self):
    self.assertEqual(settings.shown('a\n b\udcff'), 'a b\\udcff')
    self.assertEqual(settings.shown('x' * 1000), 'x' * 200 + '...')


class ProgramTest(parameterized.TestCase):
  """The training binaries, with all of their flags, in this process."""

  @parameterized.parameters(atari57_protocol.Protocol, dmlab30_protocol.Protocol)
  def test_no_flag_slips_through_and_nothing_is_made(self, protocol):
    folder = self.create_tempdir().full_path
    classes = {configs.ImpalaConfig, run_config.RunConfig, protocol} | {
        config for config in _CONFIGS if config.__name__ in ('ClusterConfig', 'PopulationConfig')}
    for config, field, kind in _FIELDS:
      if config in classes and kind is not bool:
        text = '\udcff' if kind is str else 'nan' if kind is float else str(2**62)
        with self.assertRaisesRegex(errors.UserError, f'^--{field.name}=', msg=field.name):
          training.run_in_this_process(impala.IMPALA, configs.ImpalaConfig(level_name='catch'), protocol(),
                                       f'--logdir={folder}/a/b', f'--{field.name}={text}')
    self.assertEmpty(os.listdir(folder))


if __name__ == '__main__':
  absltest.main()
