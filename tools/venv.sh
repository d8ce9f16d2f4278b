#!/bin/sh
# Make .venv, or bring it up to date: tools/venv.sh lab | dev | proof
#
# Environment: TORCH_INDEX  index from which torch alone is installed (default: pip's own)
#              CONSTRAINTS  file of version pins (default: constraints.txt)
# A stamp with the checksum of what was asked for is written last, so an interrupted run is never taken for a good one.
set -eu
cd "$(dirname "$0")/.."

what=${1:?say lab, dev or proof}
constraints=${CONSTRAINTS:-constraints.txt}
# Which extras, and which environments have them.
case $what in
    lab) extra="[book]" enough="lab dev proof" ;;
    dev) extra="[book,dev]" enough="dev proof" ;;
    proof) extra="[book,dev,class,frameworks]" enough="proof" ;;
    *) echo "tools/venv.sh: lab, dev or proof, not $what" >&2; exit 2 ;;
esac

fail() { printf '\n%s\n' "$@" >&2; exit 1; }
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# The checkout's place counts: a moved .venv points to where it was.
wanted=$({ pwd; cat pyproject.toml "$constraints"; } | cksum)
fresh() { [ -f ".venv/.ready-$1" ] && [ "$(cat ".venv/.ready-$1")" = "$wanted" ]; }

if .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    for made in $enough; do
        if fresh "$made"; then exit 0; fi
    done
else
    [ ! -e .venv ] || echo ".venv is incomplete: making it anew"
    rm -rf .venv
    python=""
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if usable "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || fail "dpbook needs Python 3.11 or newer, and none was found (tried: ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11})." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python) or name it: make ${MAKE_TARGET:-test} PYTHON=/path/to/python3"
    echo "Making .venv with $($python --version)"
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        fail "$python cannot make a virtual environment." \
            "On Debian and Ubuntu the module is a package of its own: apt install python3-venv, then run this again."
    fi
fi

rm -f .venv/.ready-lab .venv/.ready-dev .venv/.ready-proof
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
# What pip does in one line: rewritten on a terminal, elsewhere one for each package that it fetches.
say() { if [ -t 1 ]; then printf '\r\033[K  %.72s' "$1"; else printf '  %s\n' "$1"; fi; }
progress() {
    number=0
    while read -r line; do
        case $line in
            Collecting\ *)
                number=$((number + 1))
                line=${line#Collecting }
                [ ! -t 1 ] || say "looking at package $number: ${line%% *}" ;;
            Downloading\ *.metadata*) ;;
            Downloading\ * | Using\ cached\ *) say "$line" ;;
            Installing\ collected\ packages:*) say "Putting the packages into .venv" ;;
        esac
    done
    [ ! -t 1 ] || printf '\r\033[K'
}
# A pipe has the status of its last command, so that pip's is kept in a file. Its errors are not piped.
install() {
    rm -f .venv/.installed
    { pip install --progress-bar off "$@" && touch .venv/.installed; } | progress
    [ -e .venv/.installed ]
}
stuck="The installation stopped half-way; what is in .venv is kept, and the next run takes it up from there."

if [ -n "${TORCH_INDEX:-}" ]; then
    install --no-deps --index-url "$TORCH_INDEX" -c "$constraints" torch ||
        fail "torch could not be installed from TORCH_INDEX." "$stuck"
elif [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] && ! pip show --quiet torch 2>/dev/null; then
    echo "No NVIDIA GPU seen. If pip now fetches gigabytes of CUDA packages, stop it and use the CPU wheels: docs/installing.md, \"torch without CUDA\"."
fi
echo "Installing dpbook$extra (the first time takes some minutes)"
install -c "$constraints" -e ".$extra" ||
    fail "$stuck" "Without a network, dpbook runs from the checkout where its dependencies are installed: python3 -m dpbook doctor"
echo "$wanted" > ".venv/.ready-$what"
