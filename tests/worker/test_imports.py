"""What a worker has to have."""

import subprocess
import sys


def modules_after(statement):
    program = f"import sys; {statement}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=600
    )
    return set(ended.stdout.split())


def test_the_ansor_client_imports_nothing_of_the_service():
    loaded = modules_after("import tlp_client.ansor")
    assert "tvm" in loaded
    assert loaded.isdisjoint(
        {"torch", "onnxruntime", "onnx", "fastapi", "pydantic", "redis", "msgspec", "tlp_service"}
    )


def test_beyond_tvms_own_it_loads_only_urllib3_and_the_standard_library():
    beyond = modules_after("import tlp_client.ansor") - modules_after(
        "import tvm.auto_scheduler, http.client, ssl"
    )
    third_party = {m for m in beyond if m not in sys.stdlib_module_names and not m.startswith("_")}
    assert third_party <= {"tlp_client", "urllib3"}


def test_records_and_wire_need_no_tvm():
    assert "tvm" not in modules_after(
        "import tlp_client.records, tlp_client.wire.predict, tlp_client.connection"
    )


def test_the_package_itself_imports_nothing():
    assert modules_after("import tlp_client").isdisjoint({"numpy", "urllib3", "tvm"})
