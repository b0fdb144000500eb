"""Makes the tables and figures of Schmitt et al. 2020 (LASER): tables.py with --paper=laser."""

from scalable_agents.tables import tables

if __name__ == '__main__':
  tables.start('laser')
