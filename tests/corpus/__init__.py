"""What the tests are fed with: answers, mistakes, cheats, faults, and programs for ranks."""
