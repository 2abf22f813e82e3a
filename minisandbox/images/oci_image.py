"""Which image is meant, and what it consists of: the JSON of an OCI image layout and of `docker save`.

Every file that another one names by digest is compared with it. Layers are named here, not read.
(OCI image specification 1.1: image-layout.md, image-index.md, manifest.md, config.md.)
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from minisandbox.errors import HostError, LocatedError, UsageError
from minisandbox.images.oci_store import ImageStore, read_small
from minisandbox.images.recipe import ImageFacts

T = TypeVar("T")

MAX_LAYERS = 512
"""More than any builder makes: their limit is 127."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_REFERENCES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_DEFAULT_REGISTRY = re.compile(r"docker\.io/(library/)?")
_NESTING = 4


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    size: int
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None


class _Manifest(msgspec.Struct, frozen=True):
    """An index if it has `manifests`, else the manifest of one image."""

    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    """One image in manifest.json of `docker save`."""

    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


class _Settings(msgspec.Struct, frozen=True, rename="pascal"):
    env: list[str] | None = None
    user: str | None = None
    working_dir: str | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None


class _Diffs(msgspec.Struct, frozen=True):
    diff_ids: list[str]


class _Config(msgspec.Struct, frozen=True):
    rootfs: _Diffs
    architecture: str = ""
    os: str = "linux"
    config: _Settings | None = None


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """One layer of an image: a tar archive, compressed or not."""

    name: str
    """Its file in the store."""
    diff_id: str
    """Digest of the archive when it is unpacked."""
    digest: str | None = None
    """Digest of the file; None where nobody says."""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """What an image consists of."""

    layers: tuple[ImageLayer, ...]
    """The bottom one first."""
    env: dict[str, str]
    facts: ImageFacts


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One image that a store holds. `names` are all by which it can be asked for, its digest among them."""

    names: tuple[str, ...]
    descriptor: _Descriptor | None = None
    saved: _Saved | None = None


def host_architecture() -> str:
    """Return what images call the processor of this host."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def read_image(store: ImageStore, reference: str | None, architecture: str) -> Image:
    """Return the image that is meant by a tag, a name with a tag, or a digest; by None, the only one.

    Raises UsageError when there is none or more than one of that name, RootfsError when it is damaged, HostError when
    it is for another processor.
    """
    candidates = list(_list_candidates(store))
    chosen = _choose(candidates, reference, store)
    if chosen.saved is not None:
        return _read_saved(store, chosen.saved, architecture)
    assert chosen.descriptor is not None
    return _read_layout(store, chosen.descriptor, _tag_of(chosen), architecture)


def _list_candidates(store: ImageStore) -> Iterator[_Candidate]:
    if store.has("index.json"):
        index = _decode(store, "index.json", read_small(store, "index.json"), _Manifest)
        for descriptor in index.manifests or []:
            annotations = descriptor.annotations or {}
            tags = [annotations[key] for key in _REFERENCES if key in annotations]
            yield _Candidate((*tags, *_short_names(tags), descriptor.digest), descriptor=descriptor)
    elif store.has("manifest.json"):
        for saved in _decode(store, "manifest.json", read_small(store, "manifest.json"), list[_Saved]):
            tags = saved.repo_tags or []
            digest = "sha256:" + saved.config.rpartition("/")[2].removesuffix(".json")
            yield _Candidate((*tags, *_short_names(tags), digest), saved=saved)
    else:
        raise store.refuse("it has neither index.json nor manifest.json, so it is no image")


def _short_names(tags: list[str]) -> list[str]:
    """Return names without the registry that goes without saying."""
    return [_DEFAULT_REGISTRY.sub("", tag, count=1) for tag in tags if _DEFAULT_REGISTRY.match(tag)]


def _choose(candidates: list[_Candidate], reference: str | None, store: ImageStore) -> _Candidate:
    meant = [candidate for candidate in candidates if reference is None or reference in candidate.names]
    if not meant and reference is not None and ":" not in reference:
        meant = [candidate for candidate in candidates if f"{reference}:latest" in candidate.names]
    if len({candidate.names[-1] for candidate in meant}) == 1:
        return meant[0]
    known = ", ".join(candidate.names[0] for candidate in candidates[:20]) or "none"
    what = "more than one image" if meant else "no image"
    named = f" named {reference!r}" if reference is not None else ""
    raise UsageError(f"{store.refuse(f'it has {what}{named}')}; choose by tag or digest, there are: {known}")


def _tag_of(candidate: _Candidate) -> str | None:
    return candidate.names[0] if len(candidate.names) > 1 else None


def _read_layout(store: ImageStore, descriptor: _Descriptor, tag: str | None, architecture: str) -> Image:
    for _ in range(_NESTING):
        manifest = _decode(store, descriptor.digest, _read_blob(store, descriptor), _Manifest)
        if manifest.manifests is None:
            break
        descriptor = _choose_platform(store, manifest.manifests, architecture)
    else:
        raise store.refuse(f"its indexes are nested more than {_NESTING} deep")
    if manifest.config is None or manifest.layers is None:
        raise store.refuse(f"{descriptor.digest} is no manifest of an image")
    config = _decode(store, manifest.config.digest, _read_blob(store, manifest.config), _Config)
    diff_ids = _diff_ids(store, config, len(manifest.layers))
    layers = tuple(
        ImageLayer(_blob_name(store, blob.digest), diff_id, blob.digest, blob.size)
        for blob, diff_id in zip(manifest.layers, diff_ids, strict=True)
    )
    return _image(store, layers, config, ImageFacts(digest=descriptor.digest, reference=tag), architecture)


def _choose_platform(store: ImageStore, descriptors: list[_Descriptor], architecture: str) -> _Descriptor:
    platforms = [descriptor.platform or _Platform(architecture, "linux") for descriptor in descriptors]
    for descriptor, offered in zip(descriptors, platforms, strict=True):
        if (offered.os, offered.architecture) == ("linux", architecture):
            return descriptor
    known = ", ".join(f"{offered.os}/{offered.architecture}" for offered in platforms[:20])
    raise HostError(f"{store.refuse(f'this image is for {known}')}; this host is linux/{architecture}")


def _read_saved(store: ImageStore, saved: _Saved, architecture: str) -> Image:
    content = read_small(store, saved.config)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    named = re.search(r"[0-9a-f]{64}", saved.config)
    if named and named[0] != digest.removeprefix("sha256:"):
        raise store.refuse(f"{saved.config} is damaged: its digest is {digest}")
    config = _decode(store, saved.config, content, _Config)
    diff_ids = _diff_ids(store, config, len(saved.layers))
    layers = tuple(ImageLayer(name, diff_id) for name, diff_id in zip(saved.layers, diff_ids, strict=True))
    tag = saved.repo_tags[0] if saved.repo_tags else None
    return _image(store, layers, config, ImageFacts(digest=digest, reference=tag), architecture)


def _diff_ids(store: ImageStore, config: _Config, layers: int) -> list[str]:
    diff_ids = config.rootfs.diff_ids
    if len(diff_ids) != layers or not 1 <= layers <= MAX_LAYERS:
        raise store.refuse(
            f"it has {layers} layers and {len(diff_ids)} diff ids; 1 to {MAX_LAYERS} of each are possible"
        )
    for diff_id in diff_ids:
        _check_digest(store, diff_id)
    return diff_ids


def _image(
    store: ImageStore, layers: tuple[ImageLayer, ...], config: _Config, facts: ImageFacts, architecture: str
) -> Image:
    if config.os != "linux" or config.architecture not in ("", architecture):
        made_for = store.refuse(f"this image is for {config.os}/{config.architecture}")
        raise HostError(f"{made_for}; this host is linux/{architecture}")
    settings = config.config or _Settings()
    env = {
        name: value for name, equals, value in (line.partition("=") for line in settings.env or []) if name and equals
    }
    if any("\0" in name + value for name, value in env.items()):
        raise store.refuse("its environment holds a NUL byte")
    facts = msgspec.structs.replace(
        facts,
        architecture=config.architecture,
        user=settings.user or "",
        working_dir=settings.working_dir or "",
        entrypoint=tuple(settings.entrypoint or ()),
        command=tuple(settings.cmd or ()),
    )
    return Image(layers, env, facts)


def _read_blob(store: ImageStore, descriptor: _Descriptor) -> bytes:
    content = read_small(store, _blob_name(store, descriptor.digest))
    algorithm, _, expected = descriptor.digest.partition(":")
    if hashlib.new(algorithm, content).hexdigest() != expected:
        raise store.refuse(f"the blob {descriptor.digest} is damaged: it is another one's content")
    return content


def _blob_name(store: ImageStore, digest: str) -> str:
    _check_digest(store, digest)
    return "blobs/" + digest.replace(":", "/")


def _check_digest(store: ImageStore, digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise store.refuse(f"{digest[:100]!r} is no digest of a kind that is known (sha256, sha384, sha512)")


def _decode(store: ImageStore, name: str, content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _damaged(store, name, error) from error


def _damaged(store: ImageStore, name: str, error: Exception) -> LocatedError:
    return store.refuse(f"{name} is damaged: {error}")
