"""Tests of the counting of `make test`, with events and test.xml files like those of Bazel 4.2."""

import contextlib
import io
import json

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tools import test_summary

_GOOGLETEST = '''<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" failures="1" name="AllTests">
  <testsuite name="Batcher" tests="3" failures="1" skipped="1">
    <testcase name="Batches" status="run" result="completed" time="0.009" classname="Batcher" />
    <testcase name="Skips" status="run" result="skipped"><skipped message="why" /></testcase>
    <testcase name="Fails" status="run" result="completed"><failure message="1 is not 2" /></testcase>
  </testsuite>
</testsuites>'''
_ABSLTEST = '''<?xml version="1.0"?>
<testsuites name="" tests="4" failures="0" errors="1">
<testsuite name="A" tests="4" failures="0" errors="1">
  <testcase name="test_one" status="run" result="completed" classname="__main__.A"></testcase>
  <testcase name="test_two" status="run" result="completed" classname="__main__.A"></testcase>
  <testcase name="test_skip" status="notrun" result="suppressed" classname="__main__.A"></testcase>
  <testcase name="test_error" status="run" result="completed"><error message="b" type="ValueError" /></testcase>
</testsuite>
</testsuites>'''
_ALL_PASSED = ('<testsuites><testsuite><testcase name="A" status="run"/><testcase name="B" status="run"/></testsuite>'
               '</testsuites>')
# absl.testing writes a case whose sub-tests all passed and its sub-tests, but only the sub-tests if one did not pass.
_SUB_TESTS = '''<testsuites><testsuite name="A">
  <testcase name="test_loop" status="run" classname="__main__.A"></testcase>
  <testcase name="test_loop&#x20;[0]" status="run" classname="__main__.A"></testcase>
  <testcase name="test_loop&#x20;(text=&apos;x&#x20;y&apos;)" status="run" classname="__main__.A"></testcase>
  <testcase name="test_loop" status="run" classname="__main__.B"></testcase>
  <testcase name="test_fails&#x20;[0]" status="run" classname="__main__.A"></testcase>
  <testcase name="test_fails&#x20;[1]" status="run" classname="__main__.A"><failure message="1 is not 2" /></testcase>
  <testcase name="test_skips_one&#x20;[0]" status="notrun" classname="__main__.A"></testcase>
  <testcase name="test_skips_one&#x20;[1]" status="run" classname="__main__.A"></testcase>
  <testcase name="test_skips_all&#x20;[0]" status="notrun" classname="__main__.A"></testcase>
  <testcase name="test_parameterised0&#x20;(1)" status="run" classname="__main__.A"></testcase>
  <testcase name="test_parameterised1&#x20;(2)" status="run" classname="__main__.A"></testcase>
</testsuite></testsuites>'''
_FINISHED = {'id': {'buildFinished': {}}, 'finished': {'exitCode': {'name': 'SUCCESS'}}}


class TestSummaryTest(parameterized.TestCase):

  def _xml(self, content):
    return self.create_tempfile(content=content).full_path

  def _target(self, label, xml, status, attempt=1, shard=1, milliseconds=1500):
    """The events of a tested target."""
    outputs = [{'name': 'test.log', 'uri': 'file:///log'}, {'name': 'test.xml', 'uri': f'file://{self._xml(xml)}'}]
    return [
        {'id': {'targetCompleted': {'label': label}}, 'completed': {'success': True}},
        {'id': {'testResult': {'label': label, 'run': 1, 'shard': shard, 'attempt': attempt}},
         'testResult': {'testActionOutput': outputs, 'testAttemptDurationMillis': str(milliseconds)}},
        {'id': {'testSummary': {'label': label}}, 'testSummary': {'overallStatus': status}},
    ]

  def _file(self, events, end=''):
    """Writes events as Bazel does, and then an incomplete line. Returns the path."""
    return self.create_tempfile(content=''.join(json.dumps(event) + '\n' for event in events) + end).full_path

  def _check(self, events, wanted):
    """Checks passed, failed, skipped and faults."""
    self.assertEqual(test_summary.summarize(events)[:4], wanted)

  @parameterized.parameters((_GOOGLETEST, (1, 1, 1)), (_ABSLTEST, (2, 1, 1)), ('<testsuites', (0, 0, 0)),
                            (_SUB_TESTS, (5, 1, 1)))
  def test_counts_cases(self, xml, counts):
    self.assertEqual(test_summary.count_cases(self._xml(xml)), counts)

  def test_a_missing_file_has_no_cases(self):
    self.assertEqual(test_summary.count_cases('/no/test.xml'), (0, 0, 0))

  def test_adds_targets_up(self):
    events = self._target('//a:x_test', _GOOGLETEST, 'FAILED') + self._target('//a:y_test', _ABSLTEST, 'FAILED')
    self._check(events + [_FINISHED], (3, 2, 2, ('//a:x_test: FAILED', '//a:y_test: FAILED')))

  def test_a_target_that_fails_without_a_failed_case_counts(self):
    events = self._target('//a:x_tsan', _ALL_PASSED, 'FAILED') + self._target('//a:y_test', '', 'TIMEOUT')
    self._check(events + [_FINISHED], (2, 2, 0, ('//a:x_tsan: FAILED', '//a:y_test: TIMEOUT')))

  @parameterized.parameters(({'completed': {'failureDetail': {}}},), ({'aborted': {'reason': 'ANALYSIS_FAILURE'}},))
  def test_a_target_that_does_not_build_counts(self, payload):
    events = [{'id': {'targetCompleted': {'label': '//a:x'}}, **payload}, _FINISHED]
    self._check(events, (0, 1, 0, ('//a:x: DID NOT BUILD',)))

  def test_the_last_attempt_and_every_shard_count(self):
    events = (self._target('//a:x_test', _GOOGLETEST, 'FLAKY', attempt=1)
              + self._target('//a:x_test', _ALL_PASSED, 'FLAKY', attempt=2)
              + self._target('//a:x_test', _ALL_PASSED, 'FLAKY', shard=2))
    self._check(events + [_FINISHED], (4, 0, 0, ('//a:x_test: FLAKY, passed in the end',)))

  def test_a_failure_of_bazel_itself_counts(self):
    passed = self._target('//a:x_test', _ALL_PASSED, 'PASSED')
    failure = {'id': {'buildFinished': {}}, 'finished': {'exitCode': {'name': 'PARSING_FAILURE'}}}
    self._check(passed + [failure], (2, 1, 0, ('bazel ended with PARSING_FAILURE',)))
    self._check(passed, (2, 1, 0, ('bazel ended with an interruption',)))

  @parameterized.parameters(
      ('PASSED', _ALL_PASSED, 0, '2 passed, 0 failed'), ('FAILED', _ABSLTEST, 1, '2 passed, 1 failed, 1 skipped'),
      ('PASSED', '<testsuites/>', 1, '0 passed, 0 failed'))
  def test_prints_the_counts_last(self, status, xml, exit_code, line):
    events = self._target('//a:x_test', xml, status) + [_FINISHED]
    path = self._file(events)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
      self.assertEqual(test_summary.main(path), exit_code)
    self.assertEqual(output.getvalue().splitlines()[-1], line)
    self.assertEqual('to run one test file' in output.getvalue(), ' 0 failed' not in line)

  def test_a_last_line_that_is_cut_off_is_an_interruption(self):
    events = self._target('//a:x_test', _ALL_PASSED, 'PASSED')
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
      self.assertEqual(test_summary.main(self._file(events, end='{"id": {"buildFin')), 1)
    self.assertIn('bazel ended with an interruption\n', output.getvalue())
    self.assertEndsWith(output.getvalue(), '\n2 passed, 1 failed\n')

  def test_the_ten_slowest_targets_are_named_before_the_counts(self):
    events = [_FINISHED]
    for index in range(12):
      events += self._target(f'//a:x{index}_test', _ALL_PASSED, 'PASSED', milliseconds=1000 * index + 40)
    # Two shards, of which one was tried twice: 6 s in all.
    for shard, attempt in ((1, 1), (1, 2), (2, 1)):
      events += self._target('//a:flaky_test', _ALL_PASSED, 'FLAKY', attempt, shard, milliseconds=2000)
    path = self._file(events)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
      test_summary.main(path)
    flaky, title, *slowest, _ = output.getvalue().splitlines()
    self.assertEqual((flaky, title), ('//a:flaky_test: FLAKY, passed in the end', 'slowest targets:'))
    self.assertEqual([line.split() for line in slowest], [
        *([f'{index}.0', 's', f'//a:x{index}_test'] for index in range(11, 5, -1)),
        ['6.0', 's', '//a:flaky_test'], *([f'{index}.0', 's', f'//a:x{index}_test'] for index in range(5, 2, -1))])


if __name__ == '__main__':
  absltest.main()
