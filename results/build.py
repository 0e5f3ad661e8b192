"""From runs to the pages of this folder.

python results/build.py pack field    runs/field as a Parquet file here
python results/build.py field         tables, figures and page, from that file alone
"""

from __future__ import annotations

import sys

import field

ACTIONS = {
    ("pack", "field"): field.pack_runs,
    ("field",): field.build,
}

if __name__ == "__main__":
    asked = tuple(sys.argv[1:])
    if asked not in ACTIONS:
        sys.exit(f"usage: python results/build.py {' | '.join(' '.join(words) for words in ACTIONS)}")
    ACTIONS[asked]()
