"""Recipe files: which are read, how each mistake is reported, and what their digests depend on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.binds import Bind
from minisandbox.errors import RootfsError, UsageError
from minisandbox.images.host import HostRecipe
from minisandbox.images.recipe import LayerPlan, Plan, Recipe, load_recipe, recipe_digest, recipe_names
from minisandbox.images.rootfs import KINDS

GOOD = 'format = 1\nkind = "host"\ndescription = "mine"\n[env]\nA = "b"\n'


def _load(directory: Path, content: str | bytes) -> Recipe:
    file = directory / "mine.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_recipe(file, KINDS).recipe


@pytest.mark.parametrize("name", ["host", "busybox", "debian", "python"])
def test_recipes_of_the_package_load(name: str) -> None:
    """By name, and each says what it is."""
    loaded = load_recipe(name, KINDS)

    assert name in recipe_names()
    assert name == loaded.name
    assert loaded.recipe.description


def test_recipe_file_loads(tmp_path: Path) -> None:
    """Its fields are those of its kind."""
    recipe = _load(tmp_path, GOOD)

    assert HostRecipe(format=1, description="mine", env={"A": "b"}) == recipe


def test_recipe_file_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Neither a recipe of the package nor one in another directory shares it."""
    names = {"host"}
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        (directory / "host.toml").write_text(GOOD)
        names.add(load_recipe(directory / "host.toml", KINDS).name)
        names.add(load_recipe(str(directory / "host.toml"), KINDS).name)

    assert 3 == len(names)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (GOOD.replace("description", "descripton"), 3, "unknown key 'descripton'"),
        (GOOD.replace('"b"', "1"), 4, "env: .*Expected `str`, got `int`"),
        (GOOD.replace("A =", '"A=B" ='), 5, "env has 'A=B'"),
        (GOOD.replace("A =", '"" ='), 5, "env has ''"),
        (GOOD.replace('"b"', '"\\u0000"'), 5, "neither may hold NUL"),
        (GOOD.replace("= 1", "= 2"), 1, "format is 2; this version reads format = 1"),
        (GOOD.replace("= 1", "= true"), 1, "format"),
        (GOOD.replace("format = 1\n", ""), 0, "format is None"),
        (
            GOOD.replace('"host"', '"hosts"'),
            2,
            "kind is 'hosts'; it must be one of busybox, debian, directory, host, oci, python, tar",
        ),
        (GOOD.replace('"host"', "[]"), 2, r"kind is \[\]"),
        (GOOD.replace('= "mine"', ""), 3, "not TOML"),
        (b"\n\xff" + GOOD.encode(), 2, "not UTF-8"),
    ],
)
def test_mistake_in_a_recipe_names_file_and_line(tmp_path: Path, content: str | bytes, line: int, message: str) -> None:
    """Nothing unknown is passed over."""
    with pytest.raises(RootfsError, match=message) as caught:
        _load(tmp_path, content)

    assert (tmp_path / "mine.toml", line) == (caught.value.file, caught.value.line)


@given(st.one_of(st.binary(), st.text().map(str.encode), st.text().map(lambda text: (GOOD + text).encode())))
def test_junk_is_an_error_of_the_recipe(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever is in the file, either it is a recipe or the error says that it is not."""
    directory = tmp_path_factory.getbasetemp() / "junk"
    directory.mkdir(exist_ok=True)
    try:
        recipe = _load(directory, content)
    except RootfsError:
        return

    assert HostRecipe is type(recipe)


@pytest.mark.parametrize("name", ["debain", "", "..", "host ", "HOST"])
def test_unknown_name_lists_the_known(name: str) -> None:
    """A name is never a path."""
    with pytest.raises(UsageError, match="known: busybox, debian, host, python"):
        load_recipe(name, KINDS)


@pytest.mark.parametrize("path", ["/nowhere/x.toml", "/dev/zero", "/etc/", "/etc/passwd", "x\0.toml", "./x"])
def test_path_that_is_no_file_is_refused(path: str) -> None:
    """Devices and directories are not read."""
    with pytest.raises(UsageError, match="there is no recipe "):
        load_recipe(path, KINDS)


def test_recipe_digest_depends_on_all_that_is_built(tmp_path: Path) -> None:
    """On the file, on the key of every layer, on their order, and on the binds."""
    recipe = _load(tmp_path, GOOD)
    one, two = LayerPlan("1", lambda building: None), LayerPlan("2", lambda building: None)
    usr = Bind(source=Path("/usr"), target="/usr")
    digests = {
        recipe_digest(recipe, Plan(())),
        recipe_digest(recipe, Plan((one,))),
        recipe_digest(recipe, Plan((one, two))),
        recipe_digest(recipe, Plan((two, one))),
        recipe_digest(recipe, Plan((one,), (usr,))),
        recipe_digest(recipe, Plan((one,), (msgspec.structs.replace(usr, writable=True),))),
        recipe_digest(msgspec.structs.replace(recipe, env={}), Plan((one,))),
    }

    assert 7 == len(digests)
    assert recipe_digest(recipe, Plan((one,))) == recipe_digest(_load(tmp_path, GOOD), Plan((one,)))
