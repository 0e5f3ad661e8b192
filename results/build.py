"""From runs to the pages of this folder.

python results/build.py pack evidence    runs/evidence-* and runs/ablation-* as Parquet files here
python results/build.py evidence         tables, figures and page, from those files alone
python results/build.py pack field       the same of runs/field*
python results/build.py field
"""

from __future__ import annotations

import sys

import evidence
import field

ACTIONS = {
    ("pack", "evidence"): evidence.pack_runs,
    ("evidence",): evidence.build,
    ("pack", "field"): field.pack_runs,
    ("field",): field.build,
}

if __name__ == "__main__":
    asked = tuple(sys.argv[1:])
    if asked not in ACTIONS:
        sys.exit(f"usage: python results/build.py {' | '.join(' '.join(words) for words in ACTIONS)}")
    ACTIONS[asked]()
