#!/usr/bin/env bash
# A guarded vLLM pair and a gateway before it, on this machine, until Ctrl-C: one prefill worker, one decode worker.
#
#   run.sh cpu     a machine without a GPU
#   run.sh gpu     two GPUs, one a role (not run by us)
#
# VLLM, KVFENCE: the two commands, found on the PATH where not set. MODEL: a checkpoint folder; the embedded small model
# where not set. PORT: of the gateway. Everything listens on loopback alone.
set -euo pipefail

device="${1:?say cpu or gpu}"
vllm="${VLLM:-vllm}"
kvfence="${KVFENCE:-kvfence}"
port="${PORT:-8000}"
model="${MODEL:-$("$kvfence" model fetch)}"
state="$(mktemp -d)"
pids=()

stop() {
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$state/key"
  echo "ended; logs are in $state" >&2
}
trap 'stop' EXIT
trap 'exit 130' INT TERM

# The same secret for both roles, in a file that nobody else reads.
(umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$state/key")
export KVFENCE_GUARD=enforce KVFENCE_GUARD_KEY_FILE="$state/key"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_HOST_IP=127.0.0.1

more=()
buffer=""
case "$device" in
  cpu)
    # Two threads of one engine wait for each other by spinning: one thread each, bound to no core. The pool is in GiB.
    export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 UCX_TLS=tcp,sm,self
    dtype=bfloat16 # a processor without products in it takes five times as long for a prompt
    grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo || dtype=float32
    more=(--dtype "$dtype" --enforce-eager --max-num-seqs 8 --block-size 32)
    buffer='"kv_buffer_device":"cpu",'
    ;;
  gpu) ;;
  *) echo "say cpu or gpu, not $device" >&2 && exit 2 ;;
esac

start() { # role, kv_role, port, side channel's port, GPU
  local config
  config="{\"kv_connector\":\"NixlConnector\",\"kv_connector_module_path\":\"kvfence.guard.vllm\",${buffer}\"kv_role\":\"$2\"}"
  if [ "$device" = gpu ]; then export CUDA_VISIBLE_DEVICES="$5"; fi
  VLLM_NIXL_SIDE_CHANNEL_PORT="$4" "$vllm" serve "$model" --served-model-name served --host 127.0.0.1 --port "$3" \
    --max-model-len "${CONTEXT:-2048}" --kv-transfer-config "$config" "${more[@]}" >"$state/$1.log" 2>&1 &
  pids+=("$!")
}

prefill="http://127.0.0.1:${PREFILL_PORT:-8101}"
decode="http://127.0.0.1:${DECODE_PORT:-8102}"
start prefill kv_producer "${prefill##*:}" 5601 0
start decode kv_consumer "${decode##*:}" 5701 1

echo "waiting for both workers, a minute or a few; logs are in $state" >&2
until "$kvfence" guard check "$prefill" "$decode" >"$state/guard.txt" 2>&1; do
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null || { echo "a worker ended at its start; see $state" >&2 && exit 1; }
  done
  sleep 2
done
cat "$state/guard.txt" >&2

# The guard's variables are the workers'; the gateway has settings of its own.
unset KVFENCE_GUARD KVFENCE_GUARD_KEY_FILE
"$kvfence" serve --engine vllm --model "$model" --model-name served --port "$port" --prefill "$prefill" --decode "$decode" &
gateway="$!"
pids+=("$gateway")
wait "$gateway"
