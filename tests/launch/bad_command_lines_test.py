"""Wrong values for every flag of the programs: each is refused with one line, or accepted, and never a traceback."""

import itertools
import sys
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized

from scalable_agents.agents import impala
from scalable_agents.agents import laser
from scalable_agents.agents import popart_impala
from scalable_agents.agents import r2d2
from scalable_agents.cluster import cluster_config
from scalable_agents.population import population_member
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.training import atari57_protocol
from scalable_agents.training import dmlab30_protocol
from scalable_agents.training import run_config

_CONFIGS = {f'{config.__module__}.{config.__name__}': config for config in (
    impala.ImpalaConfig, popart_impala.PopArtImpalaConfig, r2d2.R2d2Config, laser.LaserConfig,
    atari57_protocol.Protocol, dmlab30_protocol.Protocol, cluster_config.ClusterConfig,
    population_member.PopulationConfig, run_config.RunConfig)}
_NO_NUMBERS = ('', ' ', 'x', '1x', '1,5', '1 2', '--', '0x', '٣x', 'None', '[]', '\udcff', '1\n2', 'e5')
_NO_COUNTS = ('1.5', '1e3', 'nan', 'inf', '-', '9' * 5000)
_NUMBERS = ('nan', '-nan', 'inf', '-inf', '1e999', '-1e999', '1e-400', '9' * 5000, '-' + '9' * 400, '-1', '1_0')
_TEXTS = ('', ' ', '\udcff', 'a\nb', 'x' * 5000, '%s', '{}', '\x00')
_NO_FLAGFILES = ('/no/such/file', '/proc/self/mem', '/', sys.executable)
# Flags of absl, which every program has.
_OF_ABSL = ('flagfile', 'undefok', 'logger_levels', 'logtostderr', 'alsologtostderr', 'log_dir', 'verbosity',
            'stderrthreshold', 'showprefixforinfo', 'run_with_pdb', 'pdb_post_mortem', 'run_with_profiling',
            'profile_file', 'use_cprofile_for_profiling', 'only_check_args')


class _Refused(Exception):
  """What the program would print before it ends."""


def _refuse(text):
  raise _Refused(text)


class BadCommandLinesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.object(run_flags, '_fail', _refuse))

  def _check_refused(self, argument, flag_values, config=None):
    """Returns whether the argument is refused, and checks that the message is one line that names the flag."""
    try:
      run_flags._parse(['program', argument], False, flag_values)
      if config:
        run_flags.config_from_flags(config, flag_values=flag_values)
      return False
    except (_Refused, errors.UserError) as error:
      line = ' '.join(str(error).split())  # As _fail prints it.
      self.assertIn(argument.lstrip('-').partition('=')[0], line)
      self.assertNotIn('Traceback', line)
      return True

  @parameterized.parameters(*_CONFIGS)
  def test_flags_of_the_project(self, name):
    config, refused = _CONFIGS[name], []
    defaults = flags.FlagValues()
    run_flags.define(config(), defaults)
    for flag in defaults:
      kind = defaults[flag].flag_type()
      must_be_refused = () if kind == 'string' else _NO_NUMBERS
      if kind in ('int', 'count'):
        must_be_refused += _NO_COUNTS
      for value in itertools.chain(must_be_refused, _NUMBERS, _TEXTS):
        flag_values = flags.FlagValues()
        run_flags.define(config(), flag_values)
        is_refused = self._check_refused(f'--{flag}={value}', flag_values, config)
        if value in must_be_refused:
          self.assertTrue(is_refused, (flag, value))
        refused.append(is_refused)
    self.assertIn(True, refused)
    self.assertIn(False, refused)

  @parameterized.parameters(*_OF_ABSL)
  def test_flags_of_absl(self, flag):
    for value in (*_NO_NUMBERS, *_NUMBERS, *_TEXTS, 'x:y', ':', 'a:INFO,b', *_NO_FLAGFILES):
      with flagsaver.flagsaver():
        self._check_refused(f'--{flag}={value}', flags.FLAGS)

  @parameterized.parameters('--stderrthreshold=x', '--stderrthreshold=', '--logger_levels=x:y', '--verbosity=x',
                            '--flagfile=/no/such/file', '--nosuchflag', '--nosuchflag=1')
  def test_refused(self, argument):
    with flagsaver.flagsaver():
      self.assertTrue(self._check_refused(argument, flags.FLAGS))


if __name__ == '__main__':
  absltest.main()
