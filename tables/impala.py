"""Makes the tables and figures of Espeholt et al. 2018 (IMPALA): tables.py with --paper=impala."""

from scalable_agents.tables import tables

if __name__ == '__main__':
  tables.start('impala')
