"""python -m torch_onnxpool verify MODEL.onnx ...: does onnxruntime pool, in this very model, as these layers do?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

NOT_VERIFIED = 2  # the exit code; argparse has the same one for wrong arguments

DESCRIPTION = """\
Runs models in onnxruntime and gives the true input of every pooling node, and random data of the same shape and type,
to the layer of torch_onnxpool. Prints how far the results differ, in absolute terms and in units in the last place
(ulp), and the rows of the ledger of known divergences (see the README) that a node falls under.
"""

EXIT_CODES = f"""\
exit codes: 0 when all pooling nodes agree or differ as the ledger says, 1 on a mismatch, {NOT_VERIFIED} when a file
could not be verified; of several files, the largest.
"""


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer >= 0, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_onnxpool")
    commands = parser.add_subparsers(title="commands", required=True)
    verify = commands.add_parser(
        "verify",
        help="compare the pooling nodes of models in onnxruntime with the layers of this package",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("models", nargs="+", metavar="MODEL.onnx")
    verify.add_argument("--input", metavar="FILE.npz", help="the inputs of the graph by name (default: random ones)")
    verify.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of all random data (default: 0)")
    options = parser.parse_args(arguments)
    try:
        from ._verify_command import run
    except ModuleNotFoundError as error:
        if error.name not in ("onnxruntime", "rich"):
            raise
        print(f"error: {error.name} is missing; it comes with the extra torch_onnxpool[verify]", file=sys.stderr)
        return NOT_VERIFIED
    return run(options.models, options.input, options.seed)


if __name__ == "__main__":
    sys.exit(main())
