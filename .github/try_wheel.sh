#!/usr/bin/env bash
# Install the wheel in dist/ into a fresh environment, with an extra or none, and use it: try_wheel.sh [EXTRA]
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH # the wheel is what is tried
extra=${1:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
bin=$folder/venv/bin
pip() { "$bin/python" -m pip --disable-pip-version-check install -q -c constraints.txt "$@"; }

wheel=$(ls "$PWD"/dist/llama_herd-*.whl)
if [ "$extra" = worker ]; then # torch first and alone: an extra index never sees the other names
  pip ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} torch==2.13.0
fi
pip "$wheel${extra:+[$extra]}"

constraints=$PWD/constraints.txt
cd "$folder" # away from the checkout, so that the wheel is what is imported
"$bin/python" -m pip check
"$bin/python" - <<'END'
import sys
from pathlib import Path
import llama_herd
from llama_herd import AsyncClient, Client

assert "site-packages" in Path(llama_herd.__file__).parts
assert not {"torch", "celery"} & sys.modules.keys()
END
case $extra in
"")
  # The command says how to add what it lacks, and that works where no index has the wheel.
  hint=$("$bin/herd" --help 2>&1) && exit 1
  [[ $hint == *"pip install 'llama-herd[cli]'"* ]]
  PIP_CONSTRAINT=$constraints pip_hint=${hint##*Fix: } bash -c 'PATH=$0:$PATH; eval "$pip_hint -q"' "$bin"
  "$bin/herd" --help >/dev/null
  ;;
worker)
  "$bin/herd" --help >/dev/null
  "$bin/herd" generate --local --max-tokens 8 "Once upon a time"
  "$bin/herd" doctor || [ $? = 1 ] # 1: it found something to mend, as the Redis that is not here
  ;;
gateway)
  "$bin/herd" gateway --help >/dev/null
  ! "$bin/python" -c "import torch" 2>/dev/null
  ;;
esac
echo "installed and used: llama-herd${extra:+[$extra]}"
