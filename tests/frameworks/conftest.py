"""What the tests of all frameworks share."""

import importlib
import itertools
import json
import sys

import pytest

import remat

_names = (f"installed_{number}" for number in itertools.count())  # what was found about a package stays


@pytest.fixture
def profiler():
    """The checkpoint profiler, counting."""
    found = remat.CheckpointProfiler
    found.reset_statistics()
    found.start_tracking()
    yield found
    found.stop_tracking()
    found.reset_statistics()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a package of this source, as from an index or from a folder, and imports it."""
    site = tmp_path / "site-packages"

    def install(source, *, from_folder=False):
        name = next(_names)
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(source)
        if from_folder:
            info = site / f"{name}_project-1.0.dist-info"
            info.mkdir()
            (info / "direct_url.json").write_text(json.dumps({"url": "file:///home/project", "dir_info": {}}))
            (info / "RECORD").write_text(f"{name}/__init__.py,,\n{info.name}/RECORD,,\n")
        importlib.invalidate_caches()
        return importlib.import_module(name)

    site.mkdir()
    monkeypatch.syspath_prepend(site)
    yield install
    for name in [name for name in sys.modules if name.startswith("installed_")]:
        del sys.modules[name]
