"""Meta-learners as approximate probabilistic inference (ML-PIP), compared fairly."""

from pathlib import Path as _Path

__version__ = "0.2.0.dev0"

# In a checkout the plugins lie beside this package; a wheel has them in it. Either way they are imported from here.
_folder = _Path(__file__).resolve().parent
if not (_folder / "methods").is_dir():
    __path__.append(str(_folder.parent))
