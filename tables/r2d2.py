"""Makes the tables and figures of Kapturowski et al. 2019 (R2D2): tables.py with --paper=r2d2."""

from scalable_agents.tables import tables

if __name__ == '__main__':
  tables.start('r2d2')
