"""The controls of a panel, moved as the front end moves them."""


class Moved:
    def __init__(self, figure) -> None:
        self.figure, self.controls = figure, {c["name"]: c for c in figure.data["controls"]}
        self.at = {name: control["at"] for name, control in self.controls.items()}

    def move(self, **to: str) -> dict:
        """What the kernel answers when these controls are moved to these options, as they are shown."""
        self.at |= {name: self.controls[name]["options"].index(option) for name, option in to.items()}
        answer = self.figure.answered(dict(self.at))
        self.at |= answer.get("at", {})
        return answer
