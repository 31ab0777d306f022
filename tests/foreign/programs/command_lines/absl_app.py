# needs: absl
from absl import app, flags
from loop import train

FLAGS = flags.FLAGS
flags.DEFINE_float("lr", 0.1, "learning rate")
flags.DEFINE_integer("steps", 2, "steps")


def main(argv):
    print(argv[1:], FLAGS.lr, flush=True)
    train(FLAGS.lr, FLAGS.steps)


if __name__ == "__main__":
    app.run(main)
