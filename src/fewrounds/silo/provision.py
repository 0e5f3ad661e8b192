"""Startup kits by FLARE's own provisioning: certificates for mutual TLS, and the little that a site allows."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

from fewrounds.errors import SettingError, one_line
from fewrounds.silo.settings import Silo

ADMIN = "coordinator@fewrounds.local"
SERVER = "server"
ORGANISATION = "fewrounds"
BUILDERS = "nvflare.lighter.impl."
ALLOWED = (
    "fewrounds.silo.job.Coordinator",
    "fewrounds.silo.job.SiteJob",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
"""All that a job may name. It brings no code: these classes are installed at the site, or there is no job."""

RIGHTS = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {
            "submit_job": "any",
            "clone_job": "none",
            "manage_job": "any",
            "download_job": "any",
            "view": "any",
            "operate": "none",
            "shell_commands": "none",
            "byoc": "none",
            "app_command": "any",
        }
    },
}
"""The coordinator may submit, stop and ask jobs: no code of its own, no look into files, no restart."""

EXAMPLE = '''"""This site's part: fill in both functions and save this file as site.py in this folder."""

import torch

import fewrounds as fr


def problem():
    """The same at every site."""
    model = fr.models.mlp([64, 100, 10])
    return fr.Problem(model, loss=torch.nn.functional.cross_entropy, l2=5e-3)


def data():
    """This site's samples: arrays or tensors (inputs, targets), or a map-style dataset. They stay here."""
    raise NotImplementedError
'''


def provision(silo: Silo, folder: Path) -> list[Path]:
    """Make the kits of the server, the coordinator and every site in this folder. Kits that are there are kept."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    wanted = [SERVER, "coordinator", *silo.sites]
    existing = [name for name in wanted if (folder / name).exists()]
    if existing == wanted:
        raise SettingError(f"{folder} has every kit already: delete the folder for new ones (old ones are then void)")
    description = _project(silo)
    with one_line(f"cannot write the kits to {folder}", SettingError):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # private keys
        made = folder / ".authority"
        with contextlib.redirect_stdout(io.StringIO()):
            context = Provisioner(str(made), prepare_builders(description)).provision(prepare_project(description))
        newest = Path(context["current_prod_dir"])
        for name in wanted:
            source = newest / {"coordinator": ADMIN, SERVER: silo.server.host}.get(name, name)
            if name not in existing:
                shutil.copytree(source, folder / name)
                _settle(folder / name, name)
    return [folder / name for name in wanted if name not in existing]


def _project(silo: Silo) -> dict[str, Any]:
    server = {"name": silo.server.host, "type": "server", "org": ORGANISATION, "fed_learn_port": silo.server.port}
    admin = {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"}
    sites = [{"name": name, "type": "client", "org": ORGANISATION} for name in silo.sites]
    return {
        "api_version": 3,
        "name": silo.name,
        "description": silo.name,
        "participants": [server, *sites, admin],
        "builders": [
            {"path": f"{BUILDERS}workspace.WorkspaceBuilder"},
            {
                "path": f"{BUILDERS}static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{BUILDERS}cert.CertBuilder"},
            {"path": f"{BUILDERS}signature.SignatureBuilder"},
        ],
    }


def _settle(kit: Path, name: str) -> None:
    """Narrow what the kit allows, and keep what its process writes within its folder."""
    if name == "coordinator":
        return
    local = kit / "local"
    (local / "authorization.json").write_text(json.dumps(RIGHTS, indent=2))
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(ALLOWED)
    resources["class_list_enforcement_mode"] = "enforce"
    if name == SERVER:
        place = "{kit}"
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{place}/snapshots"
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = f"{place}/jobs"
    else:
        resources["allow_log_streaming"] = False
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        (kit / "site.py.example").write_text(EXAMPLE)
    (local / "resources.json.template").write_text(json.dumps(resources, indent=2))


def settle_here(kit: Path) -> None:
    """Write the settings that name folders, for where the kit lies now."""
    template = kit / "local" / "resources.json.template"
    if not template.is_file():
        raise SettingError(f"{kit} is no kit of `fewrounds silo provision`")
    text = template.read_text().replace("{kit}", json.dumps(str(kit.resolve()))[1:-1])
    (kit / "local" / "resources.json").write_text(text)
