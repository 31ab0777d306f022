"""Opens JupyterLab on the first chapter:   python -m tools.lab [options of `jupyter lab`]"""

import json
import os
import signal
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start_here.ipynb"
WORKSPACE = "collectives"
QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # until Jupyter deals with Control-C
JUPYTERLAB = QUIET + "from jupyterlab.labapp import main; main()"
SETTINGS = {
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
}


def has_browser() -> bool:
    if "BROWSER" in os.environ or sys.platform == "darwin":
        return True
    # Without a display only text browsers are left, which cannot show JupyterLab.
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        with suppress(webbrowser.Error):
            return bool(webbrowser.get())
    return False


def settle() -> None:
    """Write JupyterLab's settings, as defaults that a user can change; each time, so that old environments get them.

    Widgets are saved with the notebook: one that is opened again, with its kernel gone, shows them.  No question about
    Jupyter's news covers the first page.  A page of Markdown that is opened from the list of files is shown, not its source.
    """
    ours = Path(sys.prefix, "share/jupyter/lab/settings/overrides.d/collectives.json")
    with suppress(OSError):  # an environment that is not ours to write in: then the defaults are Jupyter's
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.write_text(json.dumps(SETTINGS, indent=2), encoding="utf-8")


def arrange() -> None:
    """Gives JupyterLab our workspace, unless the user has one of that name, which holds what he changed.

    workspace.json has the outline at the left and the first chapter; behind it the cheat sheet, and progress.md, which
    contents.py writes when it is read: at first, and by labextensions/ whenever its tab is looked at.
    """
    from jupyterlab.commands import get_workspaces_dir
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    manager = WorkspacesManager(get_workspaces_dir())
    if WORKSPACE not in [known["metadata"]["id"] for known in manager.list_workspaces()]:
        with suppress(OSError):  # no folder to write in: JupyterLab then opens as usual
            manager.save(WORKSPACE, Path(__file__).with_name("workspace.json").read_text(encoding="utf-8"))


def main(options: list[str]) -> None:
    import zmq  # it and the rest of Jupyter take seconds, in which Control-C must be quiet
    from jupyter_core.paths import jupyter_config_dir

    settle()
    arrange()
    command = [sys.executable, "-c", JUPYTERLAB, "--log-level=ERROR", "--LabApp.log_level=ERROR"]
    # A file named on the command line would make its folder the root, and links out of it dead.
    command += [f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url=/lab/workspaces/{WORKSPACE}/tree/{FIRST}"]
    command.append("--ServerApp.contents_manager_class=tools.contents.Contents")
    # JupyterLab has one custom.css: the user's, if there is one, else ours.
    styles = {"static_custom_path": [f"{jupyter_config_dir()}/custom", str(Path(__file__).with_name("style"))]}
    command += ["--LabApp.custom_css=True", f"--ServerApp.tornado_settings={styles}"]
    command.append(f"--LabApp.extra_labextensions_path={Path(__file__).with_name('labextensions')}")
    if zmq.has("curve"):  # or every kernel warns that others on this machine could listen
        command.append("--KernelManager.transport_encryption=auto")
    if os.geteuid() == 0:  # in a container; Jupyter requires this option
        command.append("--allow-root")
    if "--no-browser" not in options and not has_browser():
        options = ["--no-browser", *options]
    if "--no-browser" in options:
        print("JupyterLab opens no browser here: copy the address below into one. (From another computer, forward")
        print("its port first, the number after 127.0.0.1: in the address: ssh -L PORT:localhost:PORT this-machine)")
    else:
        print("JupyterLab opens in your browser; the address below does it by hand.")
    print("Control-C, twice, stops it.", flush=True)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, whatever else the user has
    os.execv(sys.executable, command + options)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(sys.argv[1:])
