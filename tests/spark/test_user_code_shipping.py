"""The user's own code reaches the workers by itself: modules and packages beside the script, classes of the script."""

from __future__ import annotations

import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.programs import running, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = {
    "beside/jobs.py": """
        from shop.prices import tax

        class AddTax:
            def __init__(self, rate):
                self.rate = rate

            def __call__(self, price):
                return price + tax(price, self.rate)
    """,
    "beside/shop/__init__.py": "CURRENCY = 'EUR'",
    "beside/shop/prices.py": """
        from . import CURRENCY
        from .deep.rounding import whole

        def tax(price, rate):
            return whole(price * rate)

        def label(price):
            return f"{price} {CURRENCY}"
    """,
    "beside/shop/deep/__init__.py": "",
    "beside/shop/deep/rounding.py": "def whole(x):\n    return int(x + 0.5)\n",
    "beside/namespace_only/helpers.py": "def negate(n):\n    return -n\n",
    "elsewhere/extra_functions.py": "def triple(n):\n    return 3 * n\n",
    "elsewhere/extra_package/__init__.py": "from .parts import square\n",
    "elsewhere/extra_package/parts.py": "def square(n):\n    return n * n\n",
    "beside/my_job.py": """
        import enum, json, sys
        from dataclasses import dataclass
        from typing import NamedTuple

        from jobs import AddTax
        from namespace_only.helpers import negate
        from shop.prices import label
        from tidegate.common import Configuration
        from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
        from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor

        class Kind(enum.Enum):
            SMALL = 1
            LARGE = 2

        @dataclass(frozen=True)
        class Order:
            number: int
            kind: Kind

        class Pair(NamedTuple):
            order: Order
            count: int

        class Summary:
            def __init__(self):
                self.orders = []

        class Remember(KeyedProcessFunction):
            def open(self, runtime_context):
                self.summary = runtime_context.get_state(ValueStateDescriptor("summary"))
                self.kinds = runtime_context.get_list_state(ListStateDescriptor("kinds"))

            def process_element(self, order, ctx):
                summary = self.summary.value() or Summary()
                summary.orders.append(order)
                self.summary.update(summary)
                self.kinds.add(order.kind)
                assert all(isinstance(k, Kind) for k in self.kinds.get())
                assert order.kind is (Kind.SMALL if order.number < 3 else Kind.LARGE)
                yield Pair(order, len(summary.orders))

        def environment():
            config = Configuration.from_dict({"spark.master": "local[2]"})
            return StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)

        def report(name, value):
            print("REPORT " + json.dumps({name: value}), flush=True)

        def modules():
            stream = environment().from_collection([100, 200]).map(AddTax(0.2)).map(negate).map(label)
            return sorted(stream.execute_and_collect())

        def added_files():
            sys.path[:0] = [sys.argv[1], sys.argv[2]]
            import extra_functions, extra_package, zipped_functions
            env = environment()
            env.add_python_file(sys.argv[1] + "/extra_functions.py")
            env.add_python_file(sys.argv[1] + "/extra_package")
            env.add_python_file(sys.argv[2])
            stream = env.from_collection([1, 2]).map(extra_functions.triple).map(extra_package.square)
            return sorted(stream.map(zipped_functions.plus_one).execute_and_collect())

        def of_requirements(version):
            import pathlib
            file = pathlib.Path(f"requirements-{version}.txt")
            file.write_text(f"tide-tables=={version}\\n")
            env = environment()
            env.set_python_requirements(str(file), "wheels")
            stream = env.from_collection([1, 2]).rebalance()
            found = list(stream.map(lambda n: __import__("tide_tables").VERSION).execute_and_collect())
            file.unlink()
            return found

        def classes():
            orders = [Order(n, Kind.SMALL if n < 3 else Kind.LARGE) for n in range(6)]
            stream = environment().from_collection(orders).rebalance().map(lambda order: order)
            pairs = list(stream.key_by(lambda order: order.number % 2).process(Remember()).execute_and_collect())
            assert all(type(p) is Pair and type(p.order) is Order and isinstance(p.order.kind, Kind) for p in pairs)
            return sorted([p.order.number, p.order.kind.name] for p in pairs), sorted(p.count for p in pairs)

        def enum_keys():
            env = environment()
            stream = env.from_collection([Kind.SMALL, Kind.LARGE, Kind.SMALL]).rebalance().map(lambda k: (k, 1))
            return sorted([k.name, n] for k, n in stream.key_by(lambda r: r[0]).sum(1).execute_and_collect())

        def printed():
            env = environment()
            env.from_collection(["one", "two"]).map(str.upper).print("label")
            env.from_collection(["three"]).print().set_parallelism(1)
            env.execute("print")

        if __name__ == "__main__":
            import tidegate.spark.code_bundle as code_bundle

            # As on another machine: the workers see none of the driver's folders, only what was sent along.
            keep, code_bundle._user_paths = code_bundle._user_paths, lambda: iter(())
            report("modules elsewhere", modules())
            report("added files elsewhere", added_files())
            code_bundle._user_paths = keep
            report("modules", modules())
            report("requirements", [of_requirements("1.0"), of_requirements("2.0")])
            report("classes", classes())
            report("enum keys", enum_keys())
            printed()
            report("end", True)
    """,
}


def make_wheel(folder: Path, package: str, version: str) -> None:
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package}/__init__.py", f"VERSION = {version!r}\n")
        info, tag = f"{package}-{version}.dist-info", "Root-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\n{tag}")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The program's reports and its output, after one run."""
    folder = tmp_path_factory.mktemp("user_code")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    archive = folder / "functions.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("zipped_functions.py", "def plus_one(n):\n    return n + 1\n")
    (folder / "wheels").mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(folder / "wheels", "tide_tables", version)
    with running(folder / "beside" / "my_job.py", folder, str(folder / "elsewhere"), str(archive)) as program:
        program.process.wait(240)
        reports = {name: value for report in program.reports() for name, value in report.items()}
        yield {**reports, "output": program.output}


def test_the_program_ends_well(outcome: dict[str, Any]) -> None:
    assert outcome.get("end"), outcome["output"]


def test_modules_and_packages_beside_the_script(outcome: dict[str, Any]) -> None:
    assert outcome["modules"] == ["-120 EUR", "-240 EUR"]


def test_modules_beside_the_script_on_a_worker_without_the_drivers_folders(outcome: dict[str, Any]) -> None:
    assert outcome["modules elsewhere"] == ["-120 EUR", "-240 EUR"]


def test_added_files_packages_and_zips(outcome: dict[str, Any]) -> None:
    assert outcome["added files elsewhere"] == [10, 37]


def test_each_job_has_its_own_requirements(outcome: dict[str, Any]) -> None:
    """In the same workers, one job after the other."""
    assert outcome["requirements"] == [["1.0"] * 2, ["2.0"] * 2]


def test_classes_of_the_script_as_records_and_in_state(outcome: dict[str, Any]) -> None:
    orders, counts = outcome["classes"]
    assert orders == [[n, "SMALL" if n < 3 else "LARGE"] for n in range(6)]
    assert counts == [1, 1, 2, 2, 3, 3]


def test_enums_of_the_script_as_keys(outcome: dict[str, Any]) -> None:
    assert outcome["enum keys"] == [["LARGE", 1], ["SMALL", 1], ["SMALL", 2]]


def test_print_writes_lines_with_the_subtask(outcome: dict[str, Any]) -> None:
    lines = outcome["output"].splitlines()
    assert sorted(line.partition("> ")[2] for line in lines if line.startswith(("label:1> ", "label:2> "))) == [
        "ONE",
        "TWO",
    ]
    assert "three" in lines  # one subtask, no identifier: no prefix


def test_no_java_noise_in_the_output_of_a_good_program(outcome: dict[str, Any]) -> None:
    assert "at org.apache" not in outcome["output"]
    assert "Traceback" not in outcome["output"]


def test_nothing_is_left_in_the_users_folder(outcome: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(next(tmp_path_factory.getbasetemp().glob("user_code*")))
    assert {p.name for p in folder.iterdir()} == {"beside", "elsewhere", "functions.zip", "output.txt", "tmp", "wheels"}
    wait_until(lambda: not list((folder / "tmp").iterdir()))
