"""Recipes: the files rootfs/*.toml, and what a kind of recipe has to say to be built.

A kind is a subclass of `Recipe` in a module of its own: its fields are the keys of the file, its `plan` says which
layers to build and how. This module knows no kind and builds nothing.
"""

from __future__ import annotations

import abc
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.binds import Bind
from minisandbox.data import data_dir
from minisandbox.document import read_document
from minisandbox.errors import RootfsError, UsageError
from minisandbox.images.layer import Layer, field
from minisandbox.images.progress import Meter

FORMAT = 1
"""The format of recipes that this version reads."""

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
"""The environment of every rootfs; what a recipe says in [env] comes on top."""

ROOTFS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a rootfs may be called."""


@dataclass(frozen=True, slots=True)
class Building:
    """A layer while it is built."""

    top: Path
    """The empty directory that will be the layer."""
    below: tuple[Layer, ...] = ()
    """The layers that it will lie on, top first."""
    meter: Meter = dataclass_field(default_factory=Meter)
    skipped: Counter[str] = dataclass_field(default_factory=Counter)
    """How many things of the source are not in the layer, by what they are."""

    def make_scratch(self, name: str) -> Path:
        """Make an empty directory that is removed when the layer is done, or was not."""
        place = self.top.with_name(f"scratch-{name}")
        place.mkdir(mode=0o755)
        return place


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer to build."""

    key: str
    """Digest of everything that the content depends on: while it is the same, nothing is built anew."""
    fill: Callable[[Building], None]
    """Puts the content into `top`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a rootfs: its layers, top first, the host directories that it shows, its environment."""

    layers: tuple[LayerPlan, ...]
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = dataclass_field(default_factory=dict)
    """On top of `BASE_ENV` and below what the recipe says."""
    image: ImageFacts | None = None


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an image says of itself besides its layers and environment. Kept for whoever asks, used by nothing."""

    digest: str
    """Of its manifest, or of its configuration in an archive of `docker save`."""
    reference: str | None = None
    architecture: str = ""
    user: str = ""
    working_dir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """What a recipe is planned with: the host, and where the recipe is."""

    host_root: Path
    directory: Path
    """That of the recipe's file: relative paths in it begin there."""
    load: Callable[[str], NamedRecipe]
    """Finds another recipe by name or path, for one that builds on it."""

    def find(self, path: str) -> Path:
        """Return the place of a path in the recipe."""
        return Path(os.path.abspath(self.directory / path))


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What the recipes of all kinds have in common. A kind gives its name with `tag=`."""

    format: int
    description: str = ""
    """One line for the list."""
    env: dict[str, str] = {}
    """Environment variables of every command, on top of `BASE_ENV`."""

    @abc.abstractmethod
    def plan(self, site: Site) -> Plan:
        """Look at the host and say what to build. Changes nothing.

        Raises HostError when the host lacks what the kind needs.
        """


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A recipe and the name under which its rootfs is stored."""

    name: str
    file: Path
    recipe: Recipe


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(file.stem for file in _shipped().glob("*.toml"))


def load_recipe(name_or_path: str | Path, kinds: Iterable[type[Recipe]]) -> NamedRecipe:
    """Read a recipe by its name, or from a file when what is given has a "/" or ends in ".toml".

    Raises UsageError when there is none, RootfsError when it is wrong.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".toml"):
        file = Path(name_or_path).absolute()
        name = f"{file.stem}-{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    elif text in recipe_names():
        file, name = _shipped() / f"{text}.toml", text
    else:
        raise UsageError(
            f"there is no rootfs {text!r}; known: {', '.join(recipe_names())}, or give the path of a .toml"
        )
    if file.suffix != ".toml" or not file.is_file():
        raise UsageError(f"there is no recipe {str(file)!r}; give a regular file *.toml, or one of {recipe_names()}")
    if not ROOTFS_NAME.fullmatch(name):
        raise UsageError(f"cannot name a rootfs after {str(file)!r}; use letters, digits, '.', '_' and '-'")
    return NamedRecipe(name, file, _parse(file, {str(kind.__struct_config__.tag): kind for kind in kinds}))


def recipe_digest(recipe: Recipe, plan: Plan) -> str:
    """Return the digest of what a rootfs is built from, facts of the host included."""
    digest = hashlib.sha256(field(b"minisandbox recipe 1"))
    digest.update(field(msgspec.json.encode(recipe, order="sorted")))
    for layer in plan.layers:
        digest.update(field(b"layer") + field(layer.key.encode()))
    digest.update(encode_binds(plan.binds))
    return "sha256:" + digest.hexdigest()


def encode_binds(binds: Iterable[Bind]) -> bytes:
    """Return binds as bytes of which no two lists have the same."""
    return b"".join(
        field(b"bind") + field(bytes(bind.source)) + field(os.fsencode(bind.target)) + field(b"%d" % bind.writable)
        for bind in binds
    )


def _shipped() -> Path:
    return data_dir() / "rootfs"


def _parse(file: Path, kinds: dict[str, type[Recipe]]) -> Recipe:
    document = read_document(file, RootfsError)
    content = document.convert(dict[str, Any])
    if content.get("format") != FORMAT:
        message = f"format is {content.get('format')!r}; this version reads format = {FORMAT}"
        raise document.error(("format",), message)
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise document.error(("kind",), f"kind is {kind!r}; it must be one of {', '.join(sorted(kinds))}")
    recipe = document.convert(kinds[kind])
    for name, value in recipe.env.items():
        if not name or "=" in name or "\0" in name + value:
            message = f"env has {name!r} = {value!r}: a name needs a letter and no '=', neither may hold NUL"
            raise document.error(("env", name), message)
    return recipe
