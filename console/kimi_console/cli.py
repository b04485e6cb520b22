"""The `kimi-console` command: data on stdout, talk on stderr, exit codes of `kimi_agent.errors.Exit`.

Commands import what they need when they run, so that `--help` and shell completion answer at once.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kimi_agent import __version__
from kimi_agent.errors import Exit, KimiError, UsageError
from kimi_agent.paths import system_error

FILE = click.Path(path_type=Path)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Speed(click.ParamType[float | None]):
    """A replay's speed: a positive number, or `max` for no waiting at all."""

    name = "N|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value == "max":
            return None
        try:
            speed = float(str(value).removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed < float("inf"):
            self.fail(f"{value!r} is not a speed; write a number such as 8, or max", param, ctx)
        return speed


def complete_host(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Aliases of the ssh config."""
    from kimi_console.remote.config import named_hosts

    try:
        return [host for host in named_hosts(ctx.params.get("ssh_config")) if host.startswith(incomplete)]
    except KimiError:
        return []


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, shown in the order given."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


ssh_config = click.option("--ssh-config", type=FILE, help="Use this file instead of ~/.ssh/config.")
python = click.option("--python", metavar="PATH", help="The Python that runs SGLang there.")
showing = _options(
    click.option("--headless", is_flag=True, help="No screen: changes as lines of text."),
    click.option("--json", "as_json", is_flag=True, help="No screen: events as NDJSON."),
    click.option("--ascii", is_flag=True, help="Draw with ASCII characters only."),
    click.option("--theme", metavar="NAME", help="A theme by name."),
    click.option("--no-mouse", "mouse", is_flag=True, default=True, flag_value=False, help="Leave the mouse alone."),
)
watching = _options(
    click.option("--profile", type=FILE, help="A launch profile to offer, which may name the Python."),
    click.option("--read-only", is_flag=True, help="Watch only: nothing can be launched, stopped or dumped."),
    click.option("--record", type=FILE, help="Append every event to this file."),
    showing,
)


@click.group(context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(__version__, prog_name="kimi-console", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """Launch, watch and understand SGLang on a far GPU host, and dump hidden states that can be trusted.

    Alone on a terminal: a list of hosts, recordings and the demo to choose from.
    """
    if context.invoked_subcommand is not None:
        return Exit.OK
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.exceptions.NoArgsIsHelpError(context)
    from kimi_console.home import show_home

    return show_home()


@cli.command()
@click.argument("host", required=False, shell_complete=complete_host)
@python
@ssh_config
@watching
def connect(host: str | None, python: str | None, ssh_config: Path | None, **options: Any) -> int:
    """Open the console on HOST over SSH; without HOST, list the hosts of the ssh config."""
    if host is None:
        from kimi_console.remote.config import named_hosts

        for name in named_hosts(ssh_config):
            click.echo(name)
        click.echo("kimi-console: say which one: kimi-console connect HOST", err=True)
        return Exit.OK
    from kimi_console.commands import Watch

    return Watch.of(python, **options).over_ssh(host, ssh_config)


@cli.command()
@python
@click.option("--home", type=FILE, help="The agent's directory.")
@watching
def local(python: str | None, home: Path | None, **options: Any) -> int:
    """Open the console on this machine, without SSH."""
    from kimi_console.commands import Watch

    return Watch.of(python, **options).on_this_machine(home)


@cli.command()
@click.option("--headless", is_flag=True, help="No screen: run the whole job and say how it went.")
@click.option("--json", "as_json", is_flag=True, help="With --headless: one JSON object on stdout.")
@click.option("--dump", type=FILE, help="With --headless: put the dump there and keep it.")
@click.option("--yes", is_flag=True, help="Build the engine without asking (a few GB, once).")
@click.option("--replay", is_flag=False, flag_value="", metavar="[NAME]", help="Play a real hang; needs no engine.")
def demo(headless: bool, as_json: bool, dump: Path | None, yes: bool, replay: str | None) -> int:
    """The whole job on this machine: real SGLang on the CPU with a tiny Kimi-architecture model."""
    if replay is not None:
        from kimi_console.demo.replay import replay_demo

        return replay_demo(replay, headless=headless, as_json=as_json)
    from kimi_console.demo.command import run_demo

    return int(run_demo(headless=headless, as_json=as_json, dump=dump, yes=yes))


@cli.command()
@click.argument("file", type=FILE)
@click.option("--speed", type=Speed(), default="1", metavar="N|max", help="Times real time, or max.  [1]")
@click.option("--at", metavar="T", help="Begin at +90, +1:30, 14:03:22 or an ISO date and time.")
@click.option("--follow", is_flag=True, help="Go on with what is still written to FILE.")
@click.option("--against", type=FILE, metavar="OTHER", help="Compare FILE with another start.")
@showing
def replay(file: Path, speed: float | None, at: str | None, follow: bool, against: Path | None, **show: Any) -> int:
    """Play back FILE: a recording, an agent's journal, a log of SGLang or vLLM (gzip and zstd too), or - for a pipe."""
    from kimi_console.playing import compare_with, play

    if against is not None:
        return compare_with(file, against, speed, at, **show)
    return play(file, speed, at, follow=follow, **show)


@cli.command()
@click.argument("file", type=FILE)
@click.argument("out", type=FILE)
@click.option("--from", "begin", metavar="T", help="Begin at +90, +1:30, 14:03:22 or an ISO date and time.")
@click.option("--to", "end", metavar="T", help="End there.")
@click.option("--anonymise", is_flag=True, help="Without names, homes, addresses and keys; says what was replaced.")
@click.option("--theme", metavar="NAME", help="The theme of an .svg.")
def export(file: Path, out: Path, begin: str | None, end: str | None, **how: Any) -> int:
    """Write a slice of what replay plays to OUT: .kimirec events, .log text, .json state or .svg screen at its end."""
    from kimi_console.share.command import export_file
    from kimi_console.share.export import report_words

    report = export_file(file, out, begin, end, **how)
    replaced = f"; replaced: {report_words(report)}" if how["anonymise"] else ""
    click.echo(f"kimi-console: wrote {out}{replaced}", err=True)
    return Exit.OK


@cli.command()
@click.argument("target", metavar="FILE|HOST", shell_complete=complete_host)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@python
@ssh_config
def diagnose(target: str, as_json: bool, python: str | None, ssh_config: Path | None) -> int:
    """Say how a server is, from its log FILE (- for standard input) or from HOST.

    Exit code: 0 ready or starting as usual, 3 slow but advancing, 4 hung, 5 failed.
    """
    from kimi_console.headless.commands import diagnose_target

    report = diagnose_target(target, python, ssh_config)
    click.echo(report.as_json() if as_json else report.as_text(), nl=False)
    return report.exit


@cli.command()
@click.argument("host", shell_complete=complete_host)
@click.option("--run", metavar="ID", help="Of this run instead of the newest.")
@click.option("-o", "--output", type=FILE, help="Write it there instead of into the current directory.")
@python
@ssh_config
def bundle(host: str, run: str | None, output: Path | None, python: str | None, ssh_config: Path | None) -> int:
    """Bring a bundle for a bug report from HOST, with nothing private in it; kimi-agent bundle does it on the host."""
    from kimi_console.headless.commands import bundle_host

    click.echo(bundle_host(host, run, output, python, ssh_config))
    return Exit.OK


@cli.command()
def paths() -> None:
    """Print the directories that are used."""
    from kimi_agent.paths import default_home
    from kimi_console import paths as console_paths
    from kimi_console.hosts import hosts_file

    for name, path in (
        ("config", console_paths.config_dir()),
        ("hosts", hosts_file()),
        ("profiles", console_paths.profiles_dir()),
        ("themes", console_paths.themes_dir()),
        ("data", console_paths.data_dir()),
        ("state", console_paths.state_dir()),
        ("cache", console_paths.cache_dir()),
        ("agent", default_home()),
    ):
        click.echo(f"{name}\t{path}")


@cli.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a completion script, for example for `eval "$(kimi-console completion bash)"`."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "kimi-console", "_KIMI_CONSOLE_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; whatever goes wrong for a known reason is one line on stderr."""
    try:
        code = cli.main(args=arguments, prog_name="kimi-console", standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.INTERRUPTED
    except (KimiError, OSError) as error:
        known = error if isinstance(error, KimiError) else system_error(error)
        return _say(str(known), known.exit)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "kimi-console"
        return _say(str(UsageError(error.format_message().rstrip("."), f"See {command} --help.")), Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.OK


def _say(message: str, code: Exit) -> int:
    click.echo(f"kimi-console: {message}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
