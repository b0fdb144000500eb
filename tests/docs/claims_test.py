"""Tests what pages say that neither their code nor their commands show."""

import re

from absl.testing import absltest

from scalable_agents.agents import configs
from scalable_agents.agents import registry
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import returns_table
from scalable_agents.tables.results import runs
from scalable_agents.tests import source_tree
from scalable_agents.tests.docs import pages
from scalable_agents.tools import reward_scales


class ClaimsTest(absltest.TestCase):

  def test_the_table_of_games_is_that_of_the_published_runs(self):
    published, faults = runs.read(sorted(map(str, (source_tree.ROOT / 'docs' / 'results_10M').iterdir())),
                                  evaluated=False, agents=tuple(runs.NAMES))
    self.assertEmpty(faults)
    table = layout.markdown(returns_table.table(returns_table.gather(published, 1_000_000)))
    rows = [line for line in table.splitlines() if re.match(r'\| (?!level )', line)]
    self.assertGreater(len(rows), 2)
    page = pages.read('docs/games.md')
    self.assertEmpty([row for row in rows if ' '.join(row.split()) not in page])

  def test_the_published_runs_of_three_games_fill_cells_of_table_c1_in_full(self):
    published, faults = runs.read(sorted(map(str, (source_tree.ROOT / 'docs' / 'results').iterdir())), evaluated=True)
    self.assertEmpty(faults)
    table = paper_tables.TABLES['C.1']
    rows = layout.markdown(paper_tables.make(table, *paper_tables.gather(table, published))).splitlines()
    self.assertLen([row for row in rows if re.search(r'\| in full +\|', row)], 3)
    for game, paper, ours in (('boxing', '96.30', '59.17'), ('breakout', '640.43', '468.04'),
                              ('qbert', '18901.25', '13506.75')):
      row, = (row for row in rows if row.startswith(f'| {game} '))
      self.assertRegex(row, rf'\| +{paper} \| +{ours}\b.*\| in full +\|')

  def test_every_experiment_with_reward_scales_is_shown(self):
    self.assertEqual(set(re.findall(r'--experiment=(\w+)', pages.read('docs/popart.md'))),
                     set(reward_scales.EXPERIMENTS))

  def test_ablations_of_laser_have_as_many_new_unrolls_as_the_agent(self):
    """Section 5.3 varies the replayed ones. With the flags of each row, for both suites."""
    text = pages.read('docs/laser.md')
    table = text[text.index('## Ablations'):text.index('## The paper')]
    rows = [dict(re.findall(r'--(replay_share|batch_size)=([0-9.]+)', row)) for row in table.splitlines()
            if row.startswith('|')]
    flags = [(float(row['replay_share']), int(row['batch_size'])) for row in rows if row]
    self.assertEqual({share for share, _ in flags}, {0., 0.5, 0.75, 0.875})
    for config in (registry.PRESETS['laser_atari57'].config, registry.PRESETS['laser_dmlab30'].config):
      of_agent = config.split_batch()[0]
      for share, batch_size in flags:
        online, _ = configs.LaserConfig(batch_size=batch_size, replay_share=share).split_batch()
        self.assertEqual(online, of_agent, (share, batch_size))


if __name__ == '__main__':
  absltest.main()
