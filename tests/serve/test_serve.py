"""A server answers, learns in the background, undoes, and is stopped without harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests

from kept_models import content
from programs import hashroute, succeeded
from served import Server, parts, running


def test_health_and_schema(server: Server) -> None:
    assert server.get("health").json()["status"] == "ok"
    schema = server.get("openapi.json").json()
    assert set(schema["paths"]) == {
        *("/health", "/tasks", "/predict", "/learn", "/jobs/{job_id}", "/jobs/{job_id}/events", "/forget", "/undo"),
    }
    assert "multipart/form-data" in schema["paths"]["/learn"]["post"]["requestBody"]["content"]


def test_answers_are_those_of_the_command(server: Server, images: Path) -> None:
    files = sorted((images / "round" / "circle").iterdir())[:3]
    told = succeeded("predict", server.model, *files, "--top", 2, "--format", "json", folder=images)
    for found, line in zip(server.predict(*files, top=2), told.splitlines(), strict=True):
        expected = json.loads(line)
        assert (found["class_name"], found["task"]) == (expected["class"], expected["task"])
        assert (found["probability"], found["familiar"]) == (expected["probability"], expected["familiar"])
        assert len(found["top"]) == 2


def test_a_task_is_learned_beside_the_others_and_undone(server: Server, images: Path) -> None:
    asked = sorted((images / "round" / "cross").iterdir())[:4]
    before, files = server.predict(*asked, task="round", top=2), content(server.model)
    job = server.learn("straight", images / "straight", "square", "stripes", epochs=2)
    assert job["state"] == "done", job
    report = job["report"]
    assert (report["task"], report["classes"], report["epochs"]) == ("straight", ["square", "stripes"], 2)
    assert (report["old_tasks"], report["old_answers_changed"]) == (1, 0)
    assert report["old_answers"] == 16
    assert [each["name"] for each in server.get("tasks").json()["tasks"]] == ["round", "straight"]
    after = server.predict(*asked, task="round", top=2)
    assert [each["top"] for each in after] == [each["top"] for each in before]
    assert server.post("undo").json()["done"] == "straight is not known any more"
    assert content(server.model) == files


def test_a_new_model_learns_forgets_and_is_empty(images: Path, tmp_path: Path) -> None:
    with running(tmp_path / "new") as server:
        assert server.get("tasks").json() == {"tasks": [], "unfinished": 0, "last_change": None}
        refused = server.post("predict", files=parts([images / "round" / "circle" / "0.png"]))
        assert (refused.status_code, "learned no task yet" in refused.json()["error"]) == (409, True)
        assert "expected at least two" in server.learn("one", images / "round", "circle")["error"]
        assert server.learn("round", images / "round", "circle", "cross", epochs=1)["state"] == "done"
        assert server.post("forget", params={"task": "round"}).json() == {"done": "round is forgotten", "tasks": []}
        assert server.post("forget", params={"task": "round"}).status_code == 404
        assert server.post("undo").status_code == 409


@pytest.mark.slow
def test_a_stopped_server_leaves_the_model_as_it_was(images: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    files = sorted((images / "straight").glob("*/*.png"))
    labels = {"classes": [file.parent.name for file in files]}
    query = {"task": "straight", "epochs": 300}
    reached = 0
    for number in (signal.SIGTERM, signal.SIGKILL):
        manifest = (model / "manifest.json").read_bytes()
        with running(model, variables={"TMPDIR": str(temporary)}) as server:
            job = server.post("learn", params=query, files=parts(files), data=labels).json()
            assert server.post("learn", params=query, files=parts(files), data=labels).status_code == 409
            assert server.post("undo").status_code == 409
            while (found := server.get(f"jobs/{job['id']}").json())["epoch"] < reached + 2:
                assert found["state"] == "running"
                assert found["total"] is None or found["epoch"] >= reached  # the second server continues
                time.sleep(0.05)
            reached = found["epoch"]
            assert server.predict(files[0])[0]["task"] == "round"  # it answers while it learns
            server.process.send_signal(number)
            assert server.process.wait(60) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert (model / "manifest.json").read_bytes() == manifest
    while hashroute("undo", model, folder=tmp_path).returncode:  # the process that learned ends with its server
        time.sleep(0.1)
    assert not list(temporary.glob("hashroute-*"))
    assert "every file is as it was written" in succeeded("verify", model, folder=tmp_path)


def test_sigterm_finishes_a_request(images: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    file = (images / "round" / "circle" / "0.png").read_bytes()
    begun, go = threading.Event(), threading.Event()
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'

    def slowly() -> object:
        yield head + file[:20]
        begun.set()
        go.wait(30)
        yield file[20:] + b"\r\n--x--\r\n"

    with running(model) as server:
        found: list[requests.Response] = []
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        thread = threading.Thread(target=lambda: found.append(server.post("predict", kind, data=slowly())))
        thread.start()
        begun.wait(30)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        go.set()
        thread.join(60)
        assert found[0].status_code == 200, found[0].text
        assert server.process.wait(60) == 0


def test_other_addresses_need_a_token(tmp_path: Path) -> None:
    done = hashroute("serve", "model", "--host", "0.0.0.0", folder=tmp_path)
    line = "--host is 0.0.0.0, which others can reach: give a --token, or set HASHROUTE_TOKEN"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"hashroute: {line}\n")
    done = hashroute("serve", "model", "--token", "short", folder=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "at least 16" in done.stderr


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "fastapi.py").write_text("raise ModuleNotFoundError('No module named fastapi', name='fastapi')")
    where = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "hashroute", "serve", "model"]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (
        2,
        "hashroute: fastapi is not installed: pip install 'hashroute[serve]'\n",
    )
