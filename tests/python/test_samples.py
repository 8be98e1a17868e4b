"""Every code block in the documentation is compiled or run, without changes.

A page is read from top to bottom. Its `sh` blocks are one script, which runs in a separate directory. In first steps,
`zklock` in that directory is the repository; elsewhere, the directory contains the files of the repository. A
`properties` block contains the settings of a server with TLS, which runs on localhost:2281 after the script. The Python
blocks of a page are one program. Its C, C++ and Java fragments are functions of one program for each language. These
functions receive a client, and in C also a lock. A block with a `main` is a separate program. Rust blocks are doctests
of the crate zklock-standalone. A test of the command compares `console` blocks with a terminal. If a page mentions
localhost:2181, a server listens there. The page must print the content of its `text` blocks. One of these lines may
precede a block:

    <!-- sample: file NAME -->           the block is written to this file, which the page's commands use
    <!-- sample: not run: REASON -->     the block is only checked: it is compiled, or its commands are looked up
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import reference
import yaml
from documentation import ROOT, Block, blocks, pages

import zklock
from conftest import LIMIT, Inspector, wait_until
from server import ZooKeeper, reserved_port
from zklock.testing import StandaloneServer

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
#: The limit on blocks that are not run, on hand-written pages. Lower it when such blocks are removed.
MOST_NOT_RUN = 8
NOT_RUN = "not run: "
FILE = "file "
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-variable",
    "-Wno-unused-but-set-variable",
    "-Wno-unused-local-typedefs",
]
LINK = [f"-L{TARGET}/debug", "-lzklock", "-lzklock_standalone", "-lpthread", f"-Wl,-rpath,{TARGET}/debug"]

C_HEAD = """
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zklock.h>
#include <zklock_standalone.h>
static void work(void) {}
"""
C_SAMPLE = """static int sample_{line}(zkl_client *client, zkl_lock *lock) {{
    (void)client; (void)lock; (void)work;
    {{
{text}
    }}
    return 0;
}}
"""
C_MAIN = """
int main(void) {{
    int failed = 0;
    zkl_client *client;
    zkl_lock *lock;
    if (zkl_client_new("localhost:2181", NULL, &client) != ZKL_OK) return 100;
{calls}
    zkl_client_free(client);
    return failed;
}}
"""
C_CALL = """    if (zkl_mutex_new(client, "/locks/sample-{line}", &lock) != ZKL_OK) return 101;
    if (sample_{line}(client, lock) != 0) {{
        fprintf(stderr, "line {line}: %s\\n", zkl_last_error_message());
        failed = 1;
    }}
    zkl_lock_free(lock);
"""
CPP_HEAD = """
#include <chrono>
#include <cstdio>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <zklock.hpp>
using namespace std::chrono_literals;
template <class... Arguments> static void work(Arguments...) {}
"""
CPP_SAMPLE = """static void sample_{line}(zkl::client &client) {{
    (void)client;
    {{
{text}
    }}
}}
"""
CPP_MAIN = 'int main() {{\n    zkl::client client("localhost:2181");\n{calls}}}\n'
CPP_CALL = "    sample_{line}(client);\n"
JAVA_HEAD = """
import java.util.*;
import java.util.concurrent.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.framework.recipes.shared.*;
import org.apache.curator.framework.state.*;
import org.apache.curator.retry.*;
class Samples {
    static void work() {}
"""
JAVA_SAMPLE = "static void sample{line}(CuratorFramework client) throws Exception {{\n{text}\n}}\n"
JAVA_MAIN = """
    public static void main(String[] arguments) throws Exception {{
        CuratorFramework client = CuratorFrameworkFactory.newClient("localhost:2181", new RetryOneTime(100));
        client.start();
{calls}
        client.close();
    }}
}}
"""
JAVA_CALL = "        sample{line}(client);\n"


class Page:
    """A page, a directory for its files, and its output so far."""

    def __init__(self, source: Path, directory: Path, address: str, stack: ExitStack) -> None:
        self.stack = stack
        self.tls_port = stack.enter_context(reserved_port())
        _, slash, chroot = address.partition("/")
        self._chroot = slash + chroot
        self.name = str(source.relative_to(ROOT))
        self.directory = directory
        self._address = address
        self.blocks = [block._replace(text=self.at_the_server(block.text)) for block in blocks(text_of(source))]
        self.printed = ""

    def at_the_server(self, text: str) -> str:
        text = text.replace("localhost:2281", f"localhost:{self.tls_port}")
        return re.sub(r"(localhost|127\.0\.0\.1):2181", self._address, text)

    def of(self, language: str) -> list[Block]:
        """Return the blocks of a language that are run, without those that are files."""
        return [block for block in self.blocks if block.language == language and not block.marker]

    def run(self, command: list[str], seconds: float = 60, environment: dict[str, str] | None = None) -> None:
        """Run a program, and check that it succeeds."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
        # The servers' messages contain paths with the chroot, which the page does not mention.
        self.printed += done.stdout.replace(self._chroot, "") if self._chroot else done.stdout

    def write(self, name: str, text: str) -> str:
        (self.directory / name).write_text(self.at_the_server(text))
        return name


#: The pages of the reference, which only the site has.
REFERENCE = reference.pages()
ALL = [*pages(), *REFERENCE]


def text_of(page: Path) -> str:
    return REFERENCE.get(page) or page.read_text()


def is_first_steps(page: Path) -> bool:
    return page.parent.name == "first-steps"


def needs_release_build(page: Path) -> bool:
    """Return whether commands of the page install the library or use its release build, which takes minutes to make."""
    run = (block for block in blocks(text_of(page)) if block.language == "sh" and not block.marker)
    return any(re.search(r"(make|pip) install|cargo |target/release", block.text) for block in run)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.verify] if needs_release_build(page) else []
        )
        for page in ALL
    ],
)
def test_every_sample_of_a_page(
    source: Path, server: ZooKeeper, inspector: Inspector, tmp_path: Path, path: str
) -> None:
    inspector.kazoo.ensure_path(path)
    with ExitStack() as stack:
        # The pages of the first steps start a server themselves.
        address = (
            f"127.0.0.1:{stack.enter_context(reserved_port())}" if is_first_steps(source) else server.address + path
        )
        page = Page(source, tmp_path, address, stack)
        if page.of("sh") and "go run" in text_of(source) and shutil.which("go") is None:
            pytest.skip("Go is not installed")
        for block in page.blocks:
            assert block.language in CHECKS, f"{page.name}:{block.line}: no test knows {block.language!r}"
            assert not block.marker or block.marker.startswith((FILE, NOT_RUN)), (
                f"{page.name}:{block.line}: {block.marker}"
            )
        for language, check in CHECKS.items():
            if any(block.language == language for block in page.blocks):
                check(page)


def check_c(page: Page) -> None:
    check_compiled(page, "c", ["gcc", "-std=gnu11"], C_HEAD, C_SAMPLE, C_MAIN, C_CALL)


def check_cpp(page: Page) -> None:
    check_compiled(page, "cpp", ["g++", "-std=c++20"], CPP_HEAD, CPP_SAMPLE, CPP_MAIN, CPP_CALL)


def check_compiled(
    page: Page, language: str, compiler: list[str], head: str, sample: str, main: str, call: str
) -> None:
    compiler = [*compiler, *WARNINGS, f"-I{ROOT}/include"]
    for block in page.blocks:
        if block.language == language and block.marker.startswith(NOT_RUN):
            page.run([*compiler, "-fsyntax-only", page.write(f"only.{language}", block.text)])
    programs = [block for block in page.of(language) if re.search(r"^int main\(", block.text, re.MULTILINE)]
    fragments = [block for block in page.of(language) if block not in programs]
    sources = [(f"{page.directory.name}-{block.line}", located(page, block, block.text)) for block in programs]
    if fragments:
        text = head
        for block in fragments:
            outside, inside = split_fragment(block.text)
            text += located(page, block, outside)
            text += sample.format(line=block.line, text=located(page, block, inside, outside.count("\n")))
        calls = "".join(call.format(line=block.line) for block in fragments)
        sources.append(("fragments", text + main.format(calls=calls)))
    for name, text in sources:
        page.run([*compiler, page.write(f"{name}.{language}", text), "-o", name, *LINK])
        page.run([f"./{name}"])


def located(page: Page, block: Block, text: str, offset: int = 0) -> str:
    """Add a line directive, so that the compiler's messages name the page."""
    return f'#line {block.line + 1 + offset} "{page.name}"\n{text}'


def split_fragment(text: str) -> tuple[str, str]:
    """Split a fragment into the part outside of functions and the part inside. Includes, functions and types come
    first.
    """
    lines = text.splitlines(keepends=True)
    position = 0
    while position < len(lines) and re.match(r"#include|static |struct |class |\s*$", lines[position]):
        if not lines[position].startswith(("#", "\n")):
            position = next(number for number in range(position, len(lines)) if lines[number].rstrip() in ("}", "};"))
        position += 1
    return "".join(lines[:position]), "".join(lines[position:])


def check_python(page: Page) -> None:
    for block in page.blocks:
        if block.language == "python" and block.marker.startswith(NOT_RUN):
            ast.parse(block.text)
    if program := page.of("python"):
        page.write("page.py", "\n".join(block.text for block in program))
        page.run([sys.executable, "-W", "error", "page.py"])
        if any("def test_" in block.text for block in program):
            page.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "page.py"])


def check_java(page: Page) -> None:
    jars = f"{ROOT}/target/curator-newest/*"
    text = JAVA_HEAD + "".join(JAVA_SAMPLE.format(line=one.line, text=one.text) for one in page.of("java"))
    text += JAVA_MAIN.format(calls="".join(JAVA_CALL.format(line=one.line) for one in page.of("java")))
    page.run(["javac", "-cp", jars, "-d", ".", page.write("Samples.java", text)])
    page.run(
        [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f".:{jars}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "Samples",
        ]
    )


def check_rust(page: Page) -> None:
    crate = (ROOT / "standalone/src/lib.rs").read_text()
    included = os.path.relpath(ROOT / page.name, ROOT / "standalone/src")
    assert f'include_str!("{included}")' in crate, f"{page.name} is no doctest"


def check_sql(page: Page) -> None:
    for block in page.of("sql"):
        store = sqlite3.connect(":memory:")
        store.execute(
            "CREATE TABLE fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, pass INTEGER NOT NULL DEFAULT 0)"
        )
        values = ("row", 7, 2)[: block.text.count("?")]
        assert [store.execute(block.text, values).rowcount for _ in range(2)] == [1, 1]


def check_sh(page: Page) -> None:
    for block in page.blocks:
        if block.language == "sh" and block.marker.startswith(NOT_RUN):
            check_commands(page, block)
    steps = [step_of(page, block) for block in page.blocks if block in page.of("sh") or block.marker.startswith(FILE)]
    if page.of("sh"):
        inside_the_repository(page)
        page.write("page.sh", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "".join(steps))
        page.run(["bash", "-eu", "page.sh"], seconds=300, environment=like_a_users(page.directory))


def check_properties(page: Page) -> None:
    """Start a server with the settings of the page. Their files are those that the script has made."""
    (block,) = page.of("properties")
    settings = block.text.replace("/etc/zookeeper/tls", str(page.directory))
    settings = settings.replace("secureClientPort=2281", f"secureClientPort={page.tls_port}")
    directory = page.directory / "server"
    directory.mkdir()
    page.stack.enter_context(ZooKeeper(directory, settings=settings + "secureClientPortAddress=127.0.0.1\n"))
    wait_until(lambda: completes_a_handshake(page))


def completes_a_handshake(page: Page) -> bool:
    """Connect with the files of the page. The first handshake of a new server takes seconds on a busy machine."""
    context = ssl.create_default_context(cafile=page.directory / "ca.pem")
    context.load_cert_chain(page.directory / "client.pem", page.directory / "client.key")
    try:
        with socket.create_connection(("127.0.0.1", page.tls_port), timeout=LIMIT) as connection:
            context.wrap_socket(connection, server_hostname="localhost").close()
    except OSError:
        return False
    return True


def step_of(page: Page, block: Block) -> str:
    """Return a step of the script: the commands of a block, or the command that creates a file."""
    if not block.marker.startswith(FILE):
        return block.text
    name = block.marker.removeprefix(FILE)
    user = "cmake" if name == "CMakeLists.txt" else name.split("/")[0]
    assert any(user in other.text for other in page.of("sh")), f"{page.name}: nobody uses {name}"
    (page.directory / "files").mkdir(exist_ok=True)
    kept = page.write(f"files/{block.line}", block.text)
    return f"mkdir -p {page.directory / Path(name).parent}\ncp {page.directory / kept} {page.directory / name}\n"


def inside_the_repository(page: Page) -> None:
    """Prepare the directory in which a page begins."""
    if page.name.startswith("docs/first-steps/"):
        (page.directory / "zklock").symlink_to(ROOT)
        return
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (page.directory / entry.name).symlink_to(entry)


def like_a_users(directory: Path) -> dict[str, str]:
    """Return an environment with a new home directory, in which nothing is installed. Only the files that cargo has
    fetched and built are shared.
    """
    home = directory / "home"
    home.mkdir()
    real = Path.home()
    return {
        "HOME": str(home),
        "CARGO_HOME": os.environ.get("CARGO_HOME", str(real / ".cargo")),
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(real / ".rustup")),
        "CARGO_TARGET_DIR": str(TARGET),
        "PYTHONWARNINGS": "",
        "VIRTUAL_ENV": "",
    }


def check_commands(page: Page, block: Block) -> None:
    """Check that the shell can read the commands, and that each program, make target and package exists."""
    where = f"{page.name}:{block.line}"
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(block.text):
        words = command.split()
        if words[0] == "make":
            for target in (word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{where}: there is no make {target}"
        if words[0] == "cargo" and "-p" in words:
            package = words[words.index("-p") + 1]
            found = any(
                f'name = "{package}"' in file.read_text()
                for file in ROOT.glob("*/**/Cargo.toml")
                if "target" not in file.parts
            )
            assert found or package == "zklock", f"{where}: there is no package {package}"
        if words[0].startswith("target/release/"):
            # The tests use the same program of the debug build.
            words[0] = str(TARGET / "debug" / Path(words[0]).name)
            assert Path(words[0]).exists(), f"{where}: there is no {words[0]}"
        elif words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists(), f"{where}: there is no {words[0]}"
        elif "/" not in words[0] and words[0] not in ("cd", "export"):
            assert shutil.which(words[0]), f"{where}: there is no {words[0]}"


def commands(text: str) -> Iterator[str]:
    """Yield each simple command, without preceding assignments and without the comment at its end."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"<<'?(\w+)'?\n.*?\n\1\n", "\n", text, flags=re.DOTALL)
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*|[()]", "", line)
        line = re.sub(
            r'"[^"]*"|\'[^\']*\'', lambda quoted: quoted[0].replace(";", ",").replace("|", "/").replace("&", "+"), line
        )
        for command in re.split(r"&&|\|\||;|\||(?<!\d)&(?!\d)", line):
            words = command.split()
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words:
                yield " ".join(words)


def check_yaml(page: Page) -> None:
    """Check that rules for Prometheus use existing metrics and labels of a client."""
    with StandaloneServer() as server, zklock.Client(server.address) as client:
        exposed = client.prometheus()
    for block in page.of("yaml"):
        rules = [rule for group in yaml.safe_load(block.text)["groups"] for rule in group["rules"]]
        assert all(rule["alert"] for rule in rules)
        for expression in (rule["expr"] for rule in rules):
            metrics = re.findall(r"(zklock_\w+)(\{[^}]*\})?", expression)
            assert metrics, expression
            for name, labels in metrics:
                assert f"\n{name}" in exposed, f"{page.name}:{block.line}: there is no metric {name}"
                for label, value in re.findall(r'(\w+)!?="(\w*)"', labels):
                    assert f'{label}="{value}"' in exposed, f"{page.name}:{block.line}: {name} has no {label}={value}"


def check_text(page: Page) -> None:
    """Check that the page has printed what it shows, apart from the numbers."""
    for block in page.of("text"):
        for line in filter(None, map(str.strip, block.text.splitlines())):
            pattern = re.sub(r"\d+", r"[0-9a-f]+", re.escape(line))
            assert re.search(pattern, page.printed), (
                f"{page.name}:{block.line} shows {line!r}, and this was printed:\n{page.printed}"
            )


def check_drawing(page: Page) -> None:
    """Check that a block without a language is a drawing."""
    for block in page.of(""):
        assert re.search(r"[|►─]|--", block.text), f"{page.name}:{block.line}: which language is it in?"


def check_console(page: Page) -> None:
    """Check that a test of the command compares the transcript with a terminal."""
    test = (ROOT / "command/tests/terminal.rs").read_text()
    for block in page.of("console"):
        begin = block.text.split(maxsplit=3)[:3]
        assert page.name in test, f"{page.name}:{block.line}: no test compares this transcript"
        assert f"```console\\n{' '.join(begin)}" in test, f"{page.name}:{block.line}: no test compares this transcript"


def check_nothing(page: Page) -> None:
    """Do nothing: the block is a file that the page's commands read."""


#: The checks, in the order in which they run.
CHECKS = {
    "sh": check_sh,
    "properties": check_properties,
    "c": check_c,
    "cpp": check_cpp,
    "python": check_python,
    "java": check_java,
    "rust": check_rust,
    "sql": check_sql,
    "go": check_nothing,
    "cmake": check_nothing,
    "toml": check_nothing,
    "yaml": check_yaml,
    "text": check_text,
    "console": check_console,
    "": check_drawing,
}


def test_few_samples_are_not_run() -> None:
    reasons = [
        f"{page.relative_to(ROOT)}:{block.line}: {block.marker}"
        for page in pages()
        for block in blocks(page.read_text())
        if block.marker.startswith(NOT_RUN)
    ]
    assert all(len(reason.partition(NOT_RUN)[2]) > 10 for reason in reasons), reasons
    assert len(reasons) <= MOST_NOT_RUN, reasons


def test_sample_files_are_used_by_a_command() -> None:
    for page in ALL:
        for block in blocks(text_of(page)):
            if block.language in ("cmake", "toml"):
                assert block.marker.startswith(FILE), f"{page.relative_to(ROOT)}:{block.line}: which file is it?"
