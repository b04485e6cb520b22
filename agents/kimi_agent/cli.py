"""The agent's command line: data on stdout, talk on stderr, exit codes of `errors.Exit`.

What a command needs is imported inside it: `--help` must answer at once, and the daemon must stay small.
"""

import argparse
import asyncio
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kimi_agent import __version__
from kimi_agent.errors import Exit, KimiError, UsageError
from kimi_agent.paths import Home, default_home, system_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error for a person is one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    args = _parser(shards="shards" in arguments[:1]).parse_args(arguments)
    try:
        return int(args.command(args))
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.INTERRUPTED)
    except (KimiError, OSError) as error:
        known = error if isinstance(error, KimiError) else system_error(error)
        print(f"kimi-agent: {known}", file=sys.stderr)
        return int(known.exit)


def _parser(*, shards: bool) -> argparse.ArgumentParser:
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", type=Path, default=None, help="the agent's directory [$KIMI_AGENT_HOME]")
    parser = argparse.ArgumentParser(prog="kimi-agent", description="Launch, watch and serve SGLang on this host.")
    parser.add_argument("--version", action="version", version=f"kimi-agent {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", parents=[home], help="run the agent, until told to end")
    serve.add_argument("--detach", action="store_true", help="start it in the background, unless one runs")
    serve.set_defaults(command=_serve)

    attach = commands.add_parser("attach", parents=[home], help="speak the agent's protocol on stdin and stdout")
    attach.add_argument("--stdio", action="store_true", required=True)
    attach.add_argument("--start", action="store_true", help="start the agent if none runs")
    attach.add_argument("--read-only", action="store_true", help="allow nothing that changes the host")
    attach.set_defaults(command=_attach)

    _add_run(commands.add_parser("run", parents=[home], help="launch a profile without a screen"))

    template = commands.add_parser(
        "template", parents=[home], help="print a unit, a job script or a container's recipe"
    )
    template.add_argument("kind", choices=("systemd", "slurm", "container"))
    template.add_argument("profile", type=Path)
    template.set_defaults(command=_template)

    status = commands.add_parser("status", parents=[home], help="what runs here")
    status.add_argument("--json", action="store_true")
    status.set_defaults(command=_status)

    stop = commands.add_parser("stop", parents=[home], help="stop the server")
    stop.add_argument("--agent", action="store_true", help="end the agent instead; a server goes on")
    stop.set_defaults(command=_stop)

    prove = commands.add_parser("prove", parents=[home], help="prove the running server's capture mode by mode")
    prove.add_argument("--json", action="store_true")
    prove.set_defaults(command=_prove)

    _add_hang_parsers(commands, home)
    preflight = commands.add_parser("preflight", parents=[home], help="what is known to be wrong with a launch")
    preflight.add_argument("profile", type=Path)
    preflight.add_argument("--drafter", metavar="DIR", help="its config.json says which boundaries must be captured")
    preflight.add_argument("--json", action="store_true")
    preflight.set_defaults(command=_preflight)

    from kimi_agent.feed.cli import add_feed_parser

    feed = commands.add_parser("feed", parents=[home], help="drive a dataset through the running server into a dump")
    add_feed_parser(feed)
    feed.set_defaults(command=_feed)

    if shards:
        from kimi_agent.shards.cli import add_shards_parser, run_shards

        add_shards_parser(commands)
        commands.choices["shards"].set_defaults(command=run_shards)
    else:
        commands.add_parser("shards", help="list, show and verify captured shards")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("profile", type=Path)
    run.add_argument("--until", choices=("ready", "exit"), default="exit")
    run.add_argument("--dump", type=Path, help="write a dump there from READY on; after a restart it goes on")
    run.add_argument("--resume", action="store_true", help="go on with a dump of an earlier run")
    run.add_argument("--force", action="store_true", help="start in spite of what the model's files and ports show")
    run.add_argument("--timeout", type=float, help="seconds until --until must hold; then the server is stopped")
    run.add_argument("--json", action="store_true", help="events as NDJSON on stdout")
    run.add_argument("--record", type=Path, metavar="FILE", help="append all events to a recording")
    run.add_argument(
        "--restart",
        choices=("never", "failed", "hung"),
        default="never",
        help="start again, with growing delays, after a server that ended by itself or also one that hangs",
    )
    run.add_argument("--restarts", type=int, default=5, metavar="N", help="give up after so many failures in a row [5]")
    run.add_argument("--lifetime", type=float, metavar="S", help="stop the server after so many seconds")
    run.add_argument("--idle-stop", type=float, metavar="S", help="stop it after so many seconds without a request")
    run.add_argument("--end-agent", action="store_true", help="end the agent too when the command ends")
    run.add_argument("--print", action="store_true", dest="only_print", help="print the exact command and leave")
    run.set_defaults(command=_run)


def _add_hang_parsers(commands: Any, home: argparse.ArgumentParser) -> None:
    """The commands for a start that hangs."""
    bisect = commands.add_parser("bisect", parents=[home], help="find what a start hangs on, one change at a time")
    bisect.add_argument("profile", type=Path)
    bisect.add_argument("--factors", metavar="A,B", help="try these only")
    bisect.add_argument("--limit", type=float, metavar="S", help="seconds that each start gets")
    bisect.add_argument("--first", action="store_true", help="end at the first factor that gets past the hang")
    bisect.add_argument("--resume", action="store_true", help="go on with the table that was broken off")
    bisect.add_argument("--json", action="store_true", help="the table as one JSON object on stdout")
    bisect.set_defaults(command=_bisect)

    bundle = commands.add_parser("bundle", parents=[home], help="write a run's bundle for a bug report, redacted")
    bundle.add_argument("--run", metavar="ID", help="of this run instead of the newest")
    bundle.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there")
    bundle.add_argument("--host", action="append", default=[], metavar="NAME", help="take this name out too")
    bundle.add_argument("--json", action="store_true")
    bundle.set_defaults(command=_bundle)


def _home(args: argparse.Namespace) -> Home:
    return Home((args.home or default_home()).absolute())


def _serve(args: argparse.Namespace) -> int:
    from kimi_agent import daemon

    home = _home(args)
    if args.detach:
        client = daemon.connect(home, start=True)
        print(json.dumps({"socket": str(home.socket), "pid": client.hello["pid"]}))
        client.close()
        return Exit.OK
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    asyncio.run(daemon.serve(home))
    return Exit.OK


def _attach(args: argparse.Namespace) -> int:
    from kimi_agent import daemon
    from kimi_agent.attach import proxy

    client = daemon.connect(_home(args), start=args.start, upgrade=not args.read_only)
    proxy(client, read_only=args.read_only)
    return Exit.OK


def _run(args: argparse.Namespace) -> int:
    from kimi_agent import profile
    from kimi_agent.headless import RunOptions, run_headless
    from kimi_agent.policy import Policy
    from kimi_agent.runs import plan

    loaded = profile.load(args.profile)
    if args.resume and args.dump is None:
        raise UsageError("--resume needs --dump", "Name the dump to go on with.")
    if args.only_print:
        made = plan.make_plan(loaded, _home(args))
        env = plan.capture_env(made, "RUN", Path("SOCKETS"))
        print(" ".join(f"{name}={shlex.quote(value)}" for name, value in (made.env | env).items()))
        print(shlex.join(made.argv))
        return Exit.OK
    options = RunOptions(
        until=args.until, dump=args.dump, timeout=args.timeout, as_json=args.json, record=args.record,
        policy=Policy(args.restart, args.restarts, args.lifetime, args.idle_stop), end_agent=args.end_agent,
        resume=args.resume, force=args.force,
    )  # fmt: skip
    return run_headless(loaded, _home(args), options)


def _template(args: argparse.Namespace) -> int:
    from kimi_agent import profile, templates

    print(templates.fill(args.kind, profile.load(args.profile), args.profile, _home(args)), end="")
    return Exit.OK


def _status(args: argparse.Namespace) -> int:
    from kimi_agent import daemon

    client = daemon.connect(_home(args), start=False)
    answer = client.request("status")
    if args.json:
        print(json.dumps(answer))
    else:
        run = answer["run"]
        print(f"{answer['status']}  {run['name']}  {run['run']}  {run['reason']}" if run else answer["status"])
    return Exit.OK


def _stop(args: argparse.Namespace) -> int:
    from kimi_agent import daemon

    client = daemon.connect(_home(args), start=False)
    if args.agent:
        client.request("shutdown")
        return Exit.OK
    answer = client.request("stop")
    for what in answer["left"]:
        print(f"kimi-agent: could not be released: {what}", file=sys.stderr)
    return Exit.FAILED if answer["left"] else Exit.OK


def _prove(args: argparse.Namespace) -> int:
    from kimi_agent import daemon
    from kimi_agent.runs.prove import lines

    answer = daemon.connect(_home(args), start=False).request("prove")
    print(json.dumps(answer) if args.json else "\n".join(lines(answer)))
    return Exit.OK if answer["ok"] else Exit.FAILED


def _bisect(args: argparse.Namespace) -> int:
    from kimi_agent import profile
    from kimi_agent.runs.bisect_command import BisectOptions, bisect_headless

    only = tuple(args.factors.split(",")) if args.factors else None
    options = BisectOptions(only, args.limit, first=args.first, resume=args.resume, as_json=args.json)
    return bisect_headless(profile.load(args.profile), _home(args), options)


def _feed(args: argparse.Namespace) -> int:
    from kimi_agent.feed.cli import run

    return run(args)


def _bundle(args: argparse.Namespace) -> int:
    from kimi_agent.bugreport.archive import default_name, write_bundle

    home = _home(args)
    answer = write_bundle(home, args.run, args.output or Path(default_name(home, args.run)), args.host)
    if args.json:
        print(json.dumps(answer))
    else:
        removed = ", ".join(f"{count} {kind}" for kind, count in answer["removed"].items()) or "nothing"
        print(f"{answer['bundle']}  {answer['size']:,} bytes  taken out: {removed}")
    return Exit.OK


def _preflight(args: argparse.Namespace) -> int:
    from kimi_agent import profile
    from kimi_agent.preflight import report

    loaded = profile.load(args.profile)
    if args.drafter is not None:
        loaded = replace(loaded, capture=replace(loaded.capture, drafter=args.drafter))
    found = asyncio.run(report.of_profile(loaded, _home(args)))
    print(json.dumps(found) if args.json else "\n".join(report.lines(found)))
    return Exit.USAGE if found["problems"] else Exit.OK
