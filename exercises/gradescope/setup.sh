#!/usr/bin/env bash
# Gradescope runs this once, when it builds the container of an assignment. The course is in the autograder's zip, as course/.
set -euo pipefail
source=${AUTOGRADER:-/autograder}/source
apt-get update
apt-get install -y python3 python3-venv
make -C "$source/course" env PYTHON=python3
