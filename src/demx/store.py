"""A run directory: resolved configuration, metrics as JSON lines, atomic checkpoints, samples.

config.toml      the resolved configuration: a run never changes it
metrics.jsonl    one line an outer loop, the same bytes however often the run was interrupted,
                 unless it had a budget in time, by which the clock has a say
timing.jsonl     seconds and rates: what differs from run to run
checkpoint/      latest.eqx: a JSON header line (step, counts, length, checksum), then the arrays
samples.npz, report.html
"""

import fcntl
import hashlib
import io
import json
import math
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx

from demx.config import Config, dumps
from demx.errors import UserError


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside the file, flush to disk, rename over it: never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Store:
    """The files of one run."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.config_file = self.directory / "config.toml"
        self.metrics_file = self.directory / "metrics.jsonl"
        self.timing_file = self.directory / "timing.jsonl"
        self.checkpoint_file = self.directory / "checkpoint" / "latest.eqx"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time: two would write each other's files."""
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"{self.directory}: expected a directory, found a file")
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"{self.directory}: another process is training in it; wait for it, "
                    "or name another --directory"
                ) from error
            yield

    def open(self, config: Config) -> None:
        """Begin or go on: the directory must be new, or hold this very configuration."""
        if not self.config_file.exists():
            if self.checkpoint_file.exists():
                raise UserError(
                    f"{self.directory}: has a checkpoint but no config.toml, so it cannot be told "
                    "what it is a checkpoint of; name another --directory"
                )
            write_atomic(self.config_file, dumps(config).encode())
            return
        there = self.config()
        if there != tomllib.loads(dumps(config)):
            raise UserError(
                f"{self.directory} holds a run of another configuration "
                f"({_first_difference(there, tomllib.loads(dumps(config)))}); "
                "name another --directory, or remove it"
            )

    def config(self) -> Config:
        if not self.config_file.exists():
            raise UserError(
                f"{self.directory}: not a run directory (no config.toml); `demx fit TARGET` makes "
                "one, under runs unless told otherwise"
            )
        try:
            return tomllib.loads(self.config_file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{self.config_file}: not valid TOML ({error})") from error

    def save(self, state: Any, header: dict[str, Any]) -> None:
        """One atomic file; the arrays' length and checksum stand in its header."""
        arrays = io.BytesIO()
        eqx.tree_serialise_leaves(arrays, state)
        payload = arrays.getvalue()
        digest = hashlib.sha256(payload).hexdigest()
        header = {**header, "format": FORMAT, "bytes": len(payload), "sha256": digest}
        write_atomic(self.checkpoint_file, json.dumps(header).encode() + b"\n" + payload)

    def load(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The latest checkpoint, in the shape of `like`; None if there is none yet."""
        if not self.checkpoint_file.exists():
            return None
        first, _, payload = self.checkpoint_file.read_bytes().partition(b"\n")
        try:
            header = json.loads(first)
            expected, digest = header.pop("bytes"), header.pop("sha256")
        except (ValueError, KeyError) as error:
            raise UserError(f"{self.checkpoint_file}: {_DAMAGED.format('no header')}") from error
        if header.pop("format", 1) != FORMAT:
            raise UserError(
                f"{self.checkpoint_file}: written by another version of demx, whose networks are "
                "laid out differently; open it with that version, or train in another --directory"
            )
        if len(payload) != expected:
            what = f"expected {expected} bytes of arrays, found {len(payload)}"
            raise UserError(f"{self.checkpoint_file}: {_DAMAGED.format(what)}")
        if hashlib.sha256(payload).hexdigest() != digest:
            raise UserError(f"{self.checkpoint_file}: {_DAMAGED.format('checksum differs')}")
        try:
            return eqx.tree_deserialise_leaves(io.BytesIO(payload), like), header
        except RuntimeError as error:
            what = "its arrays have other shapes than the configuration asks for"
            raise UserError(f"{self.checkpoint_file}: {_DAMAGED.format(what)}") from error

    def append(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path, line in ((self.metrics_file, metrics), (self.timing_file, timing)):
            with open(path, "a") as file:
                file.write(json.dumps(_plain(line), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a checkpoint must never be ahead of its metrics

    def rewind(self, step: int) -> None:
        """Forget lines after `step`, which a killed run wrote past its last checkpoint."""
        for path in (self.metrics_file, self.timing_file):
            if path.exists():
                kept = [line for line in _lines(path) if line["step"] <= step]
                text = "".join(json.dumps(line) + "\n" for line in kept)
                write_atomic(path, text.encode())

    def history(self) -> list[dict[str, Any]]:
        """metrics.jsonl with the seconds of timing.jsonl."""
        metrics = _lines(self.metrics_file) if self.metrics_file.exists() else []
        timing = _lines(self.timing_file) if self.timing_file.exists() else []
        seconds = {line["step"]: line["seconds"] for line in timing}
        return [{**line, "seconds": seconds.get(line["step"])} for line in metrics]


FORMAT = 3  # of the arrays in a checkpoint: another number where their meaning has changed

_DAMAGED = (
    "damaged checkpoint ({}); restore the file from a copy, "
    "or remove it to train this run again from its start"
)


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break  # a line cut by a kill is the last one
    return lines


def _first_difference(a: Any, b: Any, path: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        first = ("target", "dim", "particles", "species", "scale", "fingerprint", "method", "seed")
        first = [key for key in first if key in a or key in b]
        for key in [*first, *sorted({*a, *b})]:
            if key == "fingerprint" and a.get(key) != b.get(key):
                return "the energy was another: the function or its file has changed since"
            if a.get(key) != b.get(key):
                return _first_difference(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: there {a!r}, now {b!r}"
