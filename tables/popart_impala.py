"""Makes the tables and figures of Hessel et al. 2019 (PopArt-IMPALA): tables.py with --paper=popart_impala."""

from scalable_agents.tables import tables

if __name__ == '__main__':
  tables.start('popart_impala')
