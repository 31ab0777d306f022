"""The points of a report as GitHub Classroom's reporter takes them:   python result.py report >> "$GITHUB_OUTPUT" """

import base64
import json
import sys
from pathlib import Path

(graded,) = (json.loads(path.read_text(encoding="utf-8")) for path in Path(sys.argv[1], "gradescope").glob("*.json"))
checks = [
    {
        "name": check["name"],
        "status": "pass" if check["status"] == "passed" else "fail",
        "score": check["score"],
        "message": check["output"],
    }
    for check in graded["tests"]
]
most = graded["extra_data"]["of"]
status = "pass" if graded["score"] >= most else "fail"
result = {"version": 1, "status": status, "max_score": most, "tests": checks}
print(f"result={base64.b64encode(json.dumps(result).encode()).decode()}")
