"""Real clients against the gateway: before its own engine, and before other servers.

python benchmarks/real_clients.py [--cache DIR] [--behind NAME=URL ...] [--json]

Sets up OpenAI's Python and JavaScript SDKs, LangChain and LiteLLM's client in environments of their own below --cache
(once), starts the gateway with the default model, and runs each client's checks through it; then the same with each
--behind server (say vllm=http://127.0.0.1:9000) as its upstream. Exit code 1 where a check fails. What a client needs
and this machine lacks is named in the result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateways import gateway

HERE = Path(__file__).parent / "clients"
PACKAGES = ("openai", "langchain-openai", "litellm")


def set_up(cache: Path) -> dict[str, list[str]]:
    """The command that runs each client's script."""
    python = cache / "venv" / "bin" / "python"
    if not (cache / "venv.complete").exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (cache / "venv.complete").touch()
    clients = {name: [str(python), str(HERE / f"with_{name}.py")] for name in ("openai", "langchain", "litellm")}
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        script = cache / "js" / "with_openai.mjs"
        if not (cache / "js.complete").exists():
            script.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([npm, "init", "-y"], cwd=script.parent, check=True, capture_output=True)
            subprocess.run([npm, "install", "--silent", "openai"], cwd=script.parent, check=True)
            (cache / "js.complete").touch()
        shutil.copy(HERE / "with_openai.mjs", script)
        clients["openai-js"] = [node, str(script)]
    return clients


def run(command: Sequence[str], url: str, model: str) -> list[dict[str, Any]]:
    done = subprocess.run([*command, url, model], capture_output=True, text=True, timeout=600, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not told:
        told.append({"check": "run", "ok": False, "why": done.stderr[-500:]})
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "decodeloop" / "clients")
    parser.add_argument("--behind", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    clients = set_up(options.cache)
    topologies: dict[str, dict[str, Any]] = {"embedded": {}}
    for each in options.behind:
        name, _, url = each.partition("=")
        engine = name if name in ("vllm", "sglang", "llamacpp") else "openai"
        topologies[name] = {"model": None, "gateway": {"upstreams": {name: {"url": url, "engine": engine}}}}
    results = []
    for topology, settings in topologies.items():
        with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), settings) as address:
            url = f"{address}/v1"
            with urllib.request.urlopen(f"{url}/models", timeout=10) as got:
                model = json.load(got)["data"][0]["id"]
            for client, command in clients.items():
                for told in run(command, url, model):
                    results.append({"behind": topology, "client": client, **told})
                    print(json.dumps(results[-1]), file=sys.stderr)
    failed = [each for each in results if not each["ok"]]
    missing = [] if "openai-js" in clients else ["openai-js: no node and npm here"]
    print(json.dumps({"checks": len(results), "failed": failed, "left_out": missing}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
