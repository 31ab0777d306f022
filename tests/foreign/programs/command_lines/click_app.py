# needs: click
import click
from loop import train


@click.group()
def cli():
    pass


@cli.command()
@click.option("--lr", default=0.1, type=float)
@click.option("--steps", default=2, show_default=True)
def fit(lr, steps):
    train(lr, steps)


if __name__ == "__main__":
    cli()
