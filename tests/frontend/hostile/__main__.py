import sys
from pathlib import Path

from tests.frontend.hostile import write_all

for each in write_all(Path(sys.argv[1])):
    print(each)
