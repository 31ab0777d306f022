"""The command that is run when there is a verdict on a job: to notify someone, or to end the job."""

import os
import subprocess
import tempfile
from pathlib import Path


def ring(command: str, verdict: str, record: Path) -> None:
    """Start a command of the shell, which reads the verdict from its standard input. It is not waited for.

    record: the record's folder, which the command finds in COLLECTIVES_RECORD.
    """
    with tempfile.TemporaryFile("w+") as text:
        text.write(verdict + "\n")
        text.seek(0)
        subprocess.Popen(
            command, shell=True, stdin=text, env=os.environ | {"COLLECTIVES_RECORD": str(record)},
            start_new_session=True,
        )  # fmt: skip
