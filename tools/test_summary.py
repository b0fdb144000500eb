"""Counts the test cases that `bazel test` ran: `python tools/test_summary.py EVENTS`.

EVENTS is the file that `bazel test --build_event_json_file` wrote. The program prints a line for each failed or flaky
target. If a test failed, it also prints how to run a single test. Then it prints the ten slowest targets with their
times in seconds. Its last line is `N passed, N failed`, followed by `, N skipped` if tests were skipped. It counts test
functions, and one with parameters once for each set of parameters, but not the sub-tests within a function. It exits
with code 1 if a test failed or if no test passed. A target can fail without a failed test case: because it did not
build, crashed or timed out, or because a sanitizer reported an error at its end. Such a target counts as one failure.
"""

import json
import sys
from typing import NamedTuple
import urllib.parse
from xml.etree import ElementTree

_NUM_SLOWEST = 10
_HINT = 'to run one test file, or one case of it: make setup; .venv/bin/python tests/FOLDER/NAME_test.py [CLASS.CASE]'


class Summary(NamedTuple):
  """The outcome of a run of tests."""
  passed: int                # Test cases.
  failed: int                # Test cases.
  skipped: int               # Test cases.
  faults: tuple[str, ...]    # A line for each failed or flaky target.
  seconds: dict[str, float]  # Target -> its running time, summed over all attempts and shards.


def count_cases(path):
  """Counts the test cases in a test.xml file of googletest, absl.testing or Bazel.

  A test case with sub-tests has failed if one of them has, and is skipped if all of them are.

  Args:
    path: the file. If it is missing or malformed, as after a crash, it counts as a file without test cases.
  Returns:
    (passed, failed, skipped).
  """
  try:
    elements = list(ElementTree.parse(path).iter('testcase'))
  except (OSError, ElementTree.ParseError):
    return 0, 0, 0
  outcomes = {}  # (class, method) -> outcomes of the test case or of its sub-tests.
  for element in elements:
    # absl.testing writes sub-tests as test cases. Their names begin with the method's, followed by a space.
    method = element.get('name', '').partition(' ')[0]
    outcomes.setdefault((element.get('classname'), method), set()).add(_outcome(element))
  cases = ['failed' if 'failed' in found else 'passed' if 'passed' in found else 'skipped'
           for found in outcomes.values()]
  return cases.count('passed'), cases.count('failed'), cases.count('skipped')


def _outcome(element):
  """Returns 'passed', 'failed' or 'skipped', given a testcase element."""
  if element.find('failure') is not None or element.find('error') is not None:
    return 'failed'
  return 'skipped' if element.find('skipped') is not None or element.get('status') == 'notrun' else 'passed'


def _test_xml(result):
  """Returns the path of a testResult event's test.xml, or '' if it has none."""
  for output in result.get('testActionOutput', ()):
    if output['name'] == 'test.xml':
      return urllib.parse.unquote(urllib.parse.urlparse(output['uri']).path)
  return ''


def summarize(events):
  """Summarizes Bazel's build events.

  Args:
    events: iterable of dicts, in the order in which Bazel wrote them.
  Returns:
    A Summary.
  """
  results, statuses, seconds, exit_name = {}, {}, {}, 'an interruption'
  for event in events:
    kind, key = next(iter(event['id'].items()))
    if kind == 'testResult':  # A later attempt of a flaky test replaces an earlier one.
      label, result = key['label'], event.get('testResult', {})
      results.setdefault(label, {})[key['run'], key['shard']] = result
      # JSON has this 64-bit number as text.
      seconds[label] = seconds.get(label, 0.) + int(result.get('testAttemptDurationMillis', 0)) / 1000
    elif kind == 'testSummary':
      statuses[key['label']] = event.get('testSummary', {}).get('overallStatus', 'NO_STATUS')
    elif kind == 'targetCompleted' and not event.get('completed', {}).get('success'):
      statuses[key['label']] = 'DID NOT BUILD'
    elif kind == 'buildFinished':
      exit_name = event['finished'].get('exitCode', {}).get('name', 'SUCCESS')

  passed, failed, skipped, faults = 0, 0, 0, []
  for label, status in sorted(statuses.items()):
    counts = [count_cases(_test_xml(result)) for result in results.get(label, {}).values()]
    label_passed, label_failed, label_skipped = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    if status not in ('PASSED', 'FLAKY'):
      faults.append(f'{label}: {status}')
      label_failed = max(label_failed, 1)
    elif status == 'FLAKY':
      faults.append(f'{label}: FLAKY, passed in the end')
    passed, failed, skipped = passed + label_passed, failed + label_failed, skipped + label_skipped
  if exit_name != 'SUCCESS' and not failed:  # For example, a BUILD file that does not parse has no targets.
    faults.append(f'bazel ended with {exit_name}')
    failed = 1
  return Summary(passed, failed, skipped, tuple(faults), seconds)


def slowest_lines(seconds):
  """Returns the lines that name the slowest targets, slowest first. Returns no lines if there are no targets.

  Args:
    seconds: dict of target -> seconds.
  """
  slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))[:_NUM_SLOWEST]
  return ['slowest targets:' for _ in slowest[:1]] + [f'{spent:7.1f} s  {label}' for label, spent in slowest]


def main(path):
  """Prints the summary of the events in the file `path`. Returns the exit code."""
  with open(path, encoding='utf-8', errors='replace') as lines:
    # If Bazel was killed or the disk is full, the last line is not complete.
    summary = summarize([json.loads(line) for line in lines if line.endswith('\n')])
  hint = [_HINT] if summary.failed else []
  for line in (*summary.faults, *hint, *slowest_lines(summary.seconds)):
    print(line)
  skipped = f', {summary.skipped} skipped' if summary.skipped else ''
  print(f'{summary.passed} passed, {summary.failed} failed{skipped}')
  return 1 if summary.failed or not summary.passed else 0


if __name__ == '__main__':
  if '--help' in sys.argv:
    print(__doc__)
  else:
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
