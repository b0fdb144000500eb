"""Counts what `bazel test` ran, test case by test case: `python tools/test_summary.py EVENTS`.

EVENTS is the file that `bazel test --build_event_json_file` wrote. Prints a line for each target at fault and closes
with `N passed, N failed` (and `, N skipped`). Exits with 1 if anything failed or nothing ran. A target that fails
without a failed case (it did not build, crashed, timed out, or a sanitizer spoke up at its end) counts as one failure.
"""

import json
import sys
from typing import NamedTuple
import urllib.parse
from xml.etree import ElementTree


class Summary(NamedTuple):
  """Test cases by outcome, and a line for each target at fault."""
  passed: int
  failed: int
  skipped: int
  faults: tuple


def count_cases(path):
  """Counts the cases of a test.xml of googletest, absl.testing or Bazel itself.

  Args:
    path: the file. Missing or malformed, as after a crash, it has no cases.
  Returns:
    (passed, failed, skipped).
  """
  try:
    cases = list(ElementTree.parse(path).iter('testcase'))
  except (OSError, ElementTree.ParseError):
    return 0, 0, 0
  failed = sum(case.find('failure') is not None or case.find('error') is not None for case in cases)
  skipped = sum(case.find('skipped') is not None or case.get('status') == 'notrun' for case in cases)
  return len(cases) - failed - skipped, failed, skipped


def _test_xml(result):
  """The path of a testResult event's test.xml, '' if it has none."""
  for output in result.get('testActionOutput', ()):
    if output['name'] == 'test.xml':
      return urllib.parse.unquote(urllib.parse.urlparse(output['uri']).path)
  return ''


def summarize(events):
  """Adds up Bazel's build events.

  Args:
    events: the events, as dicts, in the order in which Bazel wrote them.
  Returns:
    A Summary.
  """
  results, statuses, exit_name = {}, {}, 'an interruption'
  for event in events:
    kind, key = next(iter(event['id'].items()))
    if kind == 'testResult':  # Later attempts of a flaky test replace earlier ones.
      results.setdefault(key['label'], {})[key['run'], key['shard']] = event.get('testResult', {})
    elif kind == 'testSummary':
      statuses[key['label']] = event.get('testSummary', {}).get('overallStatus', 'NO_STATUS')
    elif kind == 'targetCompleted' and not event.get('completed', {}).get('success'):
      statuses[key['label']] = 'DID NOT BUILD'
    elif kind == 'buildFinished':
      exit_name = event['finished'].get('exitCode', {}).get('name', 'SUCCESS')

  passed, failed, skipped, faults = 0, 0, 0, []
  for label, status in sorted(statuses.items()):
    counts = [count_cases(_test_xml(result)) for result in results.get(label, {}).values()]
    label_passed, label_failed, label_skipped = (sum(column) for column in zip((0, 0, 0), *counts))
    if status not in ('PASSED', 'FLAKY'):
      faults.append(f'{label}: {status}')
      label_failed = max(label_failed, 1)
    elif status == 'FLAKY':
      faults.append(f'{label}: FLAKY, passed in the end')
    passed, failed, skipped = passed + label_passed, failed + label_failed, skipped + label_skipped
  if exit_name != 'SUCCESS' and not failed:  # For instance a BUILD file that does not parse has no targets.
    faults.append(f'bazel ended with {exit_name}')
    failed = 1
  return Summary(passed, failed, skipped, tuple(faults))


def main(path):
  """Prints the summary of the events at `path`; returns the exit code."""
  with open(path, encoding='utf-8') as lines:
    summary = summarize([json.loads(line) for line in lines])
  for fault in summary.faults:
    print(fault)
  skipped = f', {summary.skipped} skipped' if summary.skipped else ''
  print(f'{summary.passed} passed, {summary.failed} failed{skipped}')
  return 1 if summary.failed or not summary.passed else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1]))
