# What the console must know of a host before it starts the agent there. POSIX sh, read from standard input.
# usage: probe.sh MARK BUILD [PYTHON]; prints "key<TAB>value" lines between two lines that hold MARK.
# With PYTHON only that interpreter is looked at; else those that usually run SGLang, best guesses first.
mark=$1
build=$2
only=$3

line() { printf '%s\t%s\n' "$1" "$2"; }

look='import sys
try:
    from importlib.metadata import PackageNotFoundError, version
    try:
        sglang = version("sglang")
    except PackageNotFoundError:
        sglang = "-"
except ImportError:
    sglang = "-"
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], sglang))'

seen=' '
enough=
candidate() {
    [ -z "$enough" ] || return 0
    path=$1
    case $path in "~/"*) path=$HOME/${path#"~/"} ;; esac
    case $path in */*) ;; *) path=$(command -v "$path" 2>/dev/null) || return 0 ;; esac
    case $path in *[[:cntrl:]]*) return 0 ;; esac
    case $seen in *" $path "*) return 0 ;; esac
    [ -f "$path" ] && [ -x "$path" ] || return 0
    seen="$seen$path "
    found=$("$path" -c "$look" </dev/null 2>/dev/null) || return 0
    printf 'python\t%s\t%s\n' "$found" "$path"
    case $found in *' -') ;; *) enough=yes ;; esac
}

running() {
    for process in /proc/[0-9]*; do
        title=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
        case $title in *sglang.launch_server*|*sglang::scheduler*|*'sglang serve'*) ;; *) continue ;; esac
        venv=$(tr '\0' '\n' <"$process/environ" 2>/dev/null | sed -n 's/^VIRTUAL_ENV=//p;s/^CONDA_PREFIX=//p' | head -n 1)
        [ -z "$venv" ] || candidate "$venv/bin/python"
        case $title in /*python*) candidate "${title%% *}" ;; esac
        candidate "$(readlink "$process/exe" 2>/dev/null)"
    done
}

printf '\n%s\n' "$mark"
line home "$HOME"
line system "$(uname -s) $(uname -m)"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kimi-console/agent/$build
line bundle "$cache"
if [ -d "$cache" ]; then line present yes; fi
if [ -n "$only" ]; then
    candidate "$only"
else
    candidate python3
    candidate python
    for path in "$HOME"/venv/bin/python "$HOME"/.venv/bin/python "$HOME"/*/venv/bin/python "$HOME"/*/.venv/bin/python \
        "$HOME"/sglang*/bin/python "$HOME"/miniconda3/envs/*/bin/python "$HOME"/miniforge3/envs/*/bin/python \
        "$HOME"/anaconda3/envs/*/bin/python /opt/conda/bin/python /opt/conda/envs/*/bin/python /opt/*/bin/python \
        /opt/venv/bin/python /venv/bin/python /workspace/venv/bin/python /workspace/.venv/bin/python; do
        candidate "$path"
    done
    running
fi
printf '%s\n' "$mark"
