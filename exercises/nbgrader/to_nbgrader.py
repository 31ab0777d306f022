"""Takes points into nbgrader's gradebook:   python exercises/nbgrader/to_nbgrader.py report/report.json gradebook.db

For the environment that nbgrader is installed in: it needs nothing of the course. A check cell's points become its manual
score in the assignment that has the exercise's notebook; nbgrader prefers it to its own autograder's.
"""

import json
import sys

from nbgrader.api import Gradebook


def main(report: str, database: str) -> None:
    with open(report, encoding="utf-8") as file:
        submissions = json.load(file)["submissions"]
    best = {}
    for one in submissions:
        key = one["student"], one["exercise"]
        if one["exercise"] and (key not in best or best[key]["points"] < one["points"]):
            best[key] = one
    with Gradebook(f"sqlite:///{database}") as gradebook:
        homes = {notebook.name: home.name for home in gradebook.assignments for notebook in home.notebooks}
        for (student, exercise), one in best.items():
            if not (assignment := homes.get(exercise)):
                print(f"{exercise} is in no assignment of the gradebook: nbgrader generate_assignment comes first.")
                continue
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(assignment, student)
            for check in one["checks"]:
                grade = gradebook.find_grade(check["name"], exercise, assignment, student)
                grade.manual_score, grade.needs_manual_grade = check["points"], False
            gradebook.db.commit()
            print(f"{student}, {exercise}: {one['points']:g} of {one['of']:g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
